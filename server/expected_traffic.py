"""How many bytes a client of a round will send and receive, measured on messages like those that will be sent."""

from __future__ import annotations

import math

from flwr.app import Message, Metadata, RecordDict

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.secagg import RoundTrip, planned_traffic
from fedsketch.server.grids.byte_meter import serialised_size
from fedsketch.server.grids.config_errors import config_errors
from fedsketch.strategies.noise.protocol import secagg_options
from fedsketch.strategies.rounds.codec import RingCodec, summed


def expected_traffic(
    config: Config,
    broadcast: RecordDict,
    mechanism: Mechanism,
    upload_length: int,
    cohort: int,
    played: int | None = None,
) -> tuple[float, float]:
    """Return bytes (up, down) per client, for a cohort of this size without dropouts in which everybody sends this many
    numbers: of the round after so many were `played`, or else the mean of all rounds. Raises ConfigError if secure
    aggregation would refuse the round."""
    if isinstance(config.secagg, NoSecAggConfig):
        return message_size(summed(mechanism.typical_upload(upload_length))), message_size(
            broadcast
        )
    with config_errors():
        planned = planned_traffic(secagg_options(config), RingCodec(), broadcast, cohort)
    rounds, first, usual = config.rounds, _sizes(planned.first), _sizes(planned.usual)
    often = math.ceil(rounds / planned.period) / rounds
    if played is not None:
        often = float(played % planned.period == 0)
    up, down = (often * one + (1 - often) * other for one, other in zip(first, usual, strict=True))
    return up, down


def _sizes(several: list[RoundTrip]) -> tuple[int, int]:
    """Return the bytes that a client sends and receives in these round several."""
    return sum(message_size(one.reply) for one in several), sum(
        message_size(one.request) for one in several
    )


def message_size(content: RecordDict) -> int:
    """Return the size of a message between server and node. Flower's constructor needs a running app, so metadata are
    made here."""
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
