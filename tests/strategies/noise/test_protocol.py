"""Which protocol sums which rounds: the one that is named, or the cheaper one of those that are possible."""

import pytest

from fedsketch.conf import Config, compose
from fedsketch.errors import RingTooSmallError
from fedsketch.secagg import ProtocolName, VectorFormat, protocol_bytes
from fedsketch.strategies.noise.protocol import protocol_of, secagg_options

PAIRWISE, TWO_TRIPS = ProtocolName.PAIRWISE, ProtocolName.TWO_TRIPS


def _config(*overrides: str, clients: int = 60) -> Config:
    return compose([f"clients.total={clients}", f"clients.per_round={clients}", *overrides])


def _chosen(config: Config, dim: int, groups: int = 1, bits: int = 32) -> ProtocolName:
    return protocol_of(config, groups, dim, lambda name: bits)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [("pairwise", PAIRWISE), ("semi_honest", PAIRWISE), ("two_trips", TWO_TRIPS)],
)
def test_a_protocol_that_is_named_is_taken_for_every_round(
    name: str, protocol: ProtocolName
) -> None:
    config = _config(f"secagg={name}")
    for dim in (1, 10**6):
        assert _chosen(config, dim) is protocol
    assert secagg_options(config).protocol is protocol
    assert secagg_options(config).consistency == (name != "semi_honest")


@pytest.mark.parametrize("clients", [2, 4, 10, 60, 100, 1000])
@pytest.mark.parametrize("dim", [64, 458, 10_000, 100_000])
@pytest.mark.parametrize("groups", [1, 2])
def test_auto_takes_the_protocol_that_sends_less(clients: int, dim: int, groups: int) -> None:
    if clients // groups < 2:
        return
    config = _config("secagg=auto", clients=clients)
    sent = {
        name: protocol_bytes(
            secagg_options(config), VectorFormat(dim, 32, groups=groups, protocol=name), clients
        )
        for name in ProtocolName
    }
    assert _chosen(config, dim, groups) is min(ProtocolName, key=lambda name: sent[name])


def test_short_vectors_go_in_two_trips_and_long_ones_with_pairwise_masks() -> None:
    config = _config("secagg=auto")
    assert _chosen(config, 458) is TWO_TRIPS
    assert _chosen(config, 10**6) is PAIRWISE


def test_the_rings_of_both_protocols_count() -> None:
    """The same vector, for which one of them needs twice the bits."""
    config = _config("secagg=auto", clients=10)
    same = protocol_of(config, 1, 5000, lambda name: 16)
    wider = protocol_of(config, 1, 5000, lambda name: 32 if name is TWO_TRIPS else 16)
    assert (same, wider) == (TWO_TRIPS, PAIRWISE)


@pytest.mark.parametrize(
    "overrides",
    [
        ("clients.tolerated_dropouts=0.3",),  # 4 D > N
        ("clients.tolerated_losses=0.48",),
        ("secagg.bits=40",),
    ],
)
def test_where_two_trips_are_not_possible_masks_are_pairwise(overrides: tuple[str, ...]) -> None:
    config = _config("secagg=auto", *overrides)
    assert _chosen(config, 64, bits=40 if "bits" in overrides[0] else 32) is PAIRWISE


def test_where_pairwise_masks_are_not_possible_there_are_two_trips() -> None:
    assert _chosen(_config("secagg=auto", clients=1030), 10**5) is TWO_TRIPS


def test_a_protocol_without_a_ring_is_not_taken() -> None:
    def bits(name: ProtocolName) -> int:
        if name is TWO_TRIPS:
            raise RingTooSmallError("no ring")
        return 32

    assert protocol_of(_config("secagg=auto"), 1, 64, bits) is PAIRWISE


def test_losses_and_colluders_are_shares_or_numbers() -> None:
    options = secagg_options(
        _config("secagg=auto", "clients.tolerated_losses=3", "secagg.colluders=4")
    )
    sizes = options.sizes(60)
    assert (options.losses_of(sizes), sizes.colluders) == (3, 4)
    options = secagg_options(_config("secagg=auto"))
    sizes = options.sizes(60)
    assert (options.losses_of(sizes), sizes.colluders) == (3, 6)
