"""By which protocol the rounds of a run are summed, and what either protocol would send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.errors import RingTooSmallError
from fedsketch.privacy.mechanisms.mechanism import RingShape
from fedsketch.secagg import ProtocolName, SettingsError, VectorFormat, protocol_bytes
from fedsketch.server.device_evaluations import DeviceEvaluations, Evaluations
from fedsketch.server.report.number_format import size
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.protocol import secagg_options
from fedsketch.strategies.noise.training import TrainingNoise

_MOST_ROUNDS = 1000  # whose groups are looked at; later rounds are like one of them
_PROOF = "docs/explanation/two_trips.md"


@dataclass(frozen=True)
class Kind:
    """Rounds that are summed alike."""

    strategy: Strategy[Any]
    server_round: int
    groups: int
    name: str

    @property
    def protocol(self) -> ProtocolName:
        """How such a round is summed."""
        return ProtocolName.TWO_TRIPS if self._ring.modulus % 2 else ProtocolName.PAIRWISE

    @property
    def sent(self) -> dict[str, float | str]:
        """What each protocol costs a client in such a round, in bytes up and down beside the broadcast; or why it is
        impossible."""
        found: dict[str, float | str] = {}
        for name in ProtocolName:
            try:
                found[name.value] = self._bytes(name)
            except (SettingsError, RingTooSmallError) as error:
                found[name.value] = str(error)
        return found

    def _bytes(self, protocol: ProtocolName) -> float:
        plan = self.strategy.noise_of(self.server_round)
        assert isinstance(plan, DeviceNoise | TrainingNoise)  # those whose uploads are integers
        bits = plan.bits_under(protocol)
        vector = VectorFormat(self._ring.dim, bits, groups=self.groups, protocol=protocol)
        return protocol_bytes(secagg_options(self.strategy.config), vector, self._cohort)

    @property
    def _cohort(self) -> int:
        return self.strategy.config.clients.per_round

    @property
    def _ring(self) -> RingShape:
        ring = self.strategy.mechanism(self.server_round, self._cohort).ring
        assert ring is not None  # or secure aggregation would not sum it
        return ring


def kinds_of(strategy: Strategy[Any], evaluations: Evaluations) -> list[Kind]:
    """Return the kinds of rounds of a run, without those of no secure aggregation."""
    if isinstance(strategy.config.secagg, NoSecAggConfig):
        return []
    kinds = list(_training(strategy))
    if isinstance(evaluations, DeviceEvaluations):
        groups = evaluations.strategy.groups(1)
        kinds.append(Kind(evaluations.strategy, 1, groups, _named("evaluation", groups)))
    return kinds


def _training(strategy: Strategy[Any]) -> Iterator[Kind]:
    """Yield the last round of each kind: of each number of groups and length of the vectors."""
    last = strategy.config.rounds
    rounds = {
        (strategy.groups(one), strategy.vector_length(one)): one
        for one in (*range(1, min(last, _MOST_ROUNDS) + 1), last)
    }
    lengths = len({length for _, length in rounds})
    for (groups, length), one in sorted(rounds.items()):
        name = _named("training", groups)
        yield Kind(strategy, one, groups, f"{name}, {length:,} numbers" if lengths > 1 else name)


def _named(what: str, groups: int) -> str:
    return what if groups == 1 else f"{what} in {groups} groups"


def sums_planned(kinds: list[Kind]) -> dict[str, Mapping[str, Any]]:
    """Return the protocol of each kind of round, and what each protocol sends, for a plan."""
    return {kind.name: {"protocol": kind.protocol.value, "bytes": kind.sent} for kind in kinds}


def sums_facts(sums: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what a plan says about sums, in words."""
    return {f"sums of {name}": _reason(**facts) for name, facts in sums.items()}


def _reason(protocol: str, bytes: Mapping[str, float | str]) -> str:
    """Return a protocol with what it costs a client in a round beside the broadcast, and the same for the other."""
    others = [_otherwise(name, cost) for name, cost in bytes.items() if name != protocol]
    own = bytes[protocol]
    shown = f"{size(own)} a client and round beside the broadcast" if _known(own) else own
    return "; ".join([f"{protocol}: {shown}", *others])


def _otherwise(protocol: str, cost: float | str) -> str:
    return f"{protocol}: {size(cost)}" if _known(cost) else f"{protocol}: not possible"


def _known(cost: float | str) -> TypeGuard[float]:
    return not isinstance(cost, str)


def sums_sentence(kinds: list[Kind]) -> str:
    """Return what the guarantee of a run says about its sums: which protocol hides what is in them, and by whose
    proof."""
    short = [kind.name for kind in kinds if kind.protocol is ProtocolName.TWO_TRIPS]
    if not short:
        return ""
    which = "" if len(short) == len(kinds) else f" ({', '.join(short)})"
    return (
        f" Sums{which} are made in two round trips: that the server learns nothing else is a theorem of ours, which is "
        f"not peer reviewed ({_PROOF})."
    )
