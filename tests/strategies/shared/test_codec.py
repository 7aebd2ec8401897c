"""The device's last look before masks: a vector under other terms than the guard admitted does not leave."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.encoding_plan import plan_encoding
from fedsketch.secagg import Refusal, RoundSettings, SecAggOptions, VectorFormat
from fedsketch.strategies.shared.codec import RingCodec
from fedsketch.strategies.shared.terms import RingTerms
from fedsketch.strategies.shared.uploads import upload

DIM = 5


def _terms(noise: float) -> RingTerms:
    plan = plan_encoding(dim=DIM, clients=4, clip=1.0, noise=lambda l2, l1: (noise * l2) ** 2)
    return RingTerms(plan, Unit.CLIENT)


def _settings(terms: RingTerms) -> RoundSettings:
    vector = VectorFormat(DIM, terms.plan.bits, terms.to_record())
    return SecAggOptions(drops=0).settings(1, 1, range(2, 6), vector, bytes(32))


def _reply(terms: RingTerms | None, size: int = DIM, dtype: type = np.uint64) -> RecordDict:
    reply = upload(np.ones(size, dtype))
    if terms is not None:
        reply["terms"] = ConfigRecord(terms.to_record())  # type: ignore[arg-type]
    return reply


def test_the_terms_that_were_admitted_pass() -> None:
    terms = _terms(4.0)
    assert RingCodec().encode(_reply(terms), _settings(terms)).tolist() == [1] * DIM


@pytest.mark.parametrize("other", [_terms(3.9), None], ids=["less noise", "none at all"])
def test_other_terms_than_admitted_are_refused(other: RingTerms | None) -> None:
    with pytest.raises(Refusal, match="other terms"):
        RingCodec().encode(_reply(other), _settings(_terms(4.0)))


@pytest.mark.parametrize(("size", "dtype"), [(DIM + 1, np.uint64), (DIM, np.float32)])
def test_what_is_no_vector_of_the_round_is_refused(size: int, dtype: type) -> None:
    terms = _terms(4.0)
    with pytest.raises(Refusal, match="ring integers"):
        RingCodec().encode(_reply(terms, size, dtype), _settings(terms))
