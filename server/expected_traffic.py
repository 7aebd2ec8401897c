"""How many bytes a client of a round will send and receive, measured on messages like those that will be sent."""

from dataclasses import replace

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.secagg import RoundSettings, messages
from fedsketch.secagg.broadcast import RECORD
from fedsketch.secagg.identity import SIGNATURE_BYTES
from fedsketch.secagg.keys import SEALED_BYTES
from fedsketch.secagg.mod import VECTOR_KIND, VECTOR_RECORD
from fedsketch.secagg.shamir import SHARE_BYTES
from fedsketch.secagg.wire import HASH_BYTES
from fedsketch.server.grids.metered import serialised_size
from fedsketch.server.grids.secagg_options import secagg_options
from fedsketch.strategies.rounds.codec import RingCodec
from fedsketch.strategies.rounds.uploads import summed


def expected_traffic(
    config: Config, broadcast: RecordDict, mechanism: Mechanism, numbers: int, cohort: int
) -> tuple[float, float]:
    """Bytes (up, down) per client, for a cohort of this size without dropouts in which everybody sends this many
    numbers."""
    if isinstance(config.secagg, NoSecAggConfig):
        return _size(summed(mechanism.typical_upload(numbers))), _size(broadcast)
    options, codec = secagg_options(config), RingCodec()
    form = codec.describe(broadcast, options.sizes(cohort))
    options = replace(options, groups=form.groups or 1)
    settings = options.settings(1, 1, range(2, cohort + 2), form, bytes(HASH_BYTES))
    down, up = [], []
    for request, answer in _protocol(settings):
        down.append(RecordDict({RECORD: ConfigRecord({"body": request})}))
        up.append(RecordDict({RECORD: ConfigRecord({"body": answer})}))
    masked = messages.mask_reply(settings, bytes(-(-settings.dim * settings.bits // 8)))
    packed = Array("uint8", (len(masked),), VECTOR_KIND, masked)
    up.append(RecordDict({RECORD: ConfigRecord(), VECTOR_RECORD: ArrayRecord({"vector": packed})}))
    everyone, peers = range(settings.n), range(1, settings.degree + 1)
    sealed = dict.fromkeys(peers, bytes(SEALED_BYTES))
    request = messages.mask_request(settings, everyone, sealed)
    down.append(RecordDict({**codec.strip(broadcast), RECORD: ConfigRecord({"body": request})}))
    return sum(map(_size, up)), sum(map(_size, down))


def _protocol(settings: RoundSettings) -> list[tuple[bytes, bytes]]:
    """Requests and replies before and after the masked upload, with zeros in place of keys, shares and signatures."""
    everyone, peers = range(settings.n), range(1, settings.degree + 1)
    sealed = dict.fromkeys(peers, bytes(SEALED_BYTES))
    exchanges = [
        (settings.encoded, messages.advertise_reply(settings, bytes(messages.ADVERT_BYTES))),
        (
            messages.share_request(
                settings, everyone, dict.fromkeys(peers, bytes(messages.ADVERT_BYTES))
            ),
            messages.share_reply(settings, bytes(HASH_BYTES), sealed),
        ),
    ]
    signatures: dict[int, bytes] = {}
    if settings.consistency:
        signatures = dict.fromkeys(range(settings.quorum), bytes(SIGNATURE_BYTES))
        exchanges.append(
            (
                messages.sign_request(settings, everyone),
                messages.sign_reply(settings, bytes(SIGNATURE_BYTES)),
            )
        )
    shares = dict.fromkeys([0, *peers], bytes(SHARE_BYTES))
    exchanges.append(
        (
            messages.unmask_request(settings, everyone, signatures),
            messages.unmask_reply(settings, shares),
        )
    )
    return exchanges


def _size(content: RecordDict) -> int:
    """The size of a message between server and node. Flower's constructor needs a running app, so metadata are made
    here."""
    metadata = Metadata(
        run_id=1,
        message_id="0" * 32,
        src_node_id=1,
        dst_node_id=2,
        reply_to_message_id="0" * 32,
        group_id="1",
        created_at=1.0,
        ttl=1.0,
        message_type="train",
    )
    return serialised_size(Message(content=content, metadata=metadata))  # type: ignore[call-overload]
