"""The mechanism travels once, in the round's settings: what the device does is what its guard admitted, whatever the
message says."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.secagg import (
    PairwiseSettings,
    ProtocolName,
    Refusal,
    SecAggOptions,
    SettingsError,
    Sizes,
)
from fedsketch.strategies.rounds.codec import MECHANISM, RingCodec, summed

DIM = 5
SIZES = Sizes(4, 0, 0)


def _mechanism(noise: float, **options: int) -> SkellamRing:
    return choose_ring(
        dim=DIM, clients=4, clip=1.0, noise=lambda l2, l1: (noise * l2) ** 2, **options
    )


def _broadcast(mechanism: SkellamRing) -> RecordDict:
    record = ConfigRecord(mechanism.to_record())  # type: ignore[arg-type]
    return RecordDict({"head": ConfigRecord({"round": 1}), MECHANISM: record})


def _settings(mechanism: SkellamRing) -> PairwiseSettings:
    vector = RingCodec().describe(_broadcast(mechanism), SIZES)
    return PairwiseSettings.proposed(SecAggOptions(drops=0), 1, 1, range(2, 6), vector, bytes(32))


def test_the_broadcast_carries_no_second_copy() -> None:
    sent = RingCodec().strip(_broadcast(_mechanism(4.0)))
    assert set(sent) == {"head"}


def test_a_device_gets_back_what_the_settings_hold() -> None:
    mechanism = _mechanism(4.0)
    content = RingCodec().strip(_broadcast(mechanism))
    RingCodec().restore(content, _settings(mechanism))
    assert mechanism_from_record(content.config_records[MECHANISM]) == mechanism


def test_a_mechanism_that_a_message_smuggles_in_is_overwritten() -> None:
    admitted = _mechanism(4.0)
    content = _broadcast(_mechanism(0.0))
    RingCodec().restore(content, _settings(admitted))
    assert mechanism_from_record(content.config_records[MECHANISM]) == admitted


def test_real_numbers_are_not_summed_under_masks() -> None:
    record = ConfigRecord({"mechanism": "gaussian", "local_multiplier": 1.0})
    with pytest.raises(SettingsError, match="ring integers"):
        RingCodec().describe(RecordDict({MECHANISM: record}), SIZES)


def test_a_vector_of_the_round_passes() -> None:
    reply = summed(np.ones(DIM, np.uint64))
    assert RingCodec().encode(reply, _settings(_mechanism(4.0))).tolist() == [1] * DIM


@pytest.mark.parametrize(("size", "dtype"), [(DIM + 1, np.uint64), (DIM, np.float32)])
def test_what_is_no_vector_of_the_round_is_refused(size: int, dtype: type) -> None:
    with pytest.raises(Refusal, match="ring integers"):
        RingCodec().encode(summed(np.ones(size, dtype)), _settings(_mechanism(4.0)))


def test_the_mechanism_says_which_protocol_sums() -> None:
    for prime, protocol in ((0, ProtocolName.PAIRWISE), (65521, ProtocolName.TWO_TRIPS)):
        vector = RingCodec().describe(_broadcast(_mechanism(4.0, bits=16, prime=prime)), SIZES)
        assert (vector.bits, vector.protocol) == (16, protocol)
        assert SecAggOptions().for_vector(vector).protocol is protocol
