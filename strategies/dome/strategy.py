"""DOME, from "Communication Efficient, Differentially Private Distributed Optimization using Correlation-Aware
Sketching" (Nicolas, Maouche, Ben Mokhtar, Coates 2025).

The matrix S (d x k), the sketch, shortens a gradient of d numbers to k << d numbers, and it is learned during the run.
A round:
1. Client i sends s_i = clip(S^T (g_i - m_ref), C) with noise. g_i is its gradient, m_ref an estimate of the mean
   gradient.
2. The server takes the mean y of the s_i and "desketches" it: g = S y + m_ref.
3. It updates the optimiser's moments, from which it removes the known variance of the noise, and then the model.
4. It updates S from S y or from the first moment (`strategies.dome.state`). Or S comes from public data
   (`strategies.dome.public_state`).

docs/strategies/dome.md lists where the code corrects the paper's text.

Formal guarantees: those of `strategies.noise.device`, with an upload of k numbers. S is made only from earlier
releases and public data, so it is post-processing. The clip comes after the sketch, so it bounds the upload for every
S.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace

import torch
from flwr.app import RecordDict

from fedsketch.conf import Config
from fedsketch.delivery.parcels import Parcels, Step
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.sketching.blocks import BlockSketch
from fedsketch.sketching.digest import digest
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise import LayerwiseSketch, probe_length
from fedsketch.strategies.dome.learned_sketch import folds_of, isotropic, sketch_of
from fedsketch.strategies.dome.public_directions import public_directions
from fedsketch.strategies.dome.public_state import PublicState
from fedsketch.strategies.dome.state import DomeState, probe_seed, settings_of
from fedsketch.strategies.local.batched import BatchedWork, batched_unit_rows
from fedsketch.strategies.local.factored import FactorSketch, batched_factored, factored_blocks
from fedsketch.strategies.local.made_once import LastMade
from fedsketch.strategies.local.update import example_blocks, unit_rows
from fedsketch.strategies.rounds.base import DeviceHalf, FederatedStrategy, LocalWork
from fedsketch.strategies.rounds.messages import Aggregate, Broadcast, Number
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload

RESIDUAL = "residual"
Memory = MutableMapping[str, torch.Tensor]


class Dome(FederatedStrategy):
    """The server half."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        super().__init__(config, job, model, cohorts)
        replay = settings_of(config).broadcast == "replay"
        # With replay, devices repeat the server's steps on their CPUs, so the server also makes them on a CPU.
        self.state = _state(config, model, model.vector.cpu() if replay else model.vector)
        self.parcels = Parcels(self.state) if replay else None
        self._ranks: list[int] = []  # the number of learned directions in use, per fold
        self._energy: float | None = None
        given = self._renewed()
        if given:  # a separate step for replay, before the first round
            self._record(Step(0, torch.empty(0), 0.0, given))

    def upload_size(self, server_round: int) -> int:
        return sum(
            fold.size for fold in folds_of(settings_of(self.config), self.model, server_round)
        )

    def planned_broadcast(self) -> RecordDict:
        """Return a broadcast for the run's plan. With `broadcast=full` it has as many learned directions as possible.
        With `broadcast=replay` it is one for a device that also took part in the previous round."""
        config, last = self.config, self.config.rounds
        mechanism = self.mechanism(last, config.clients.per_round)
        state = replica(config, self.model)
        if self.parcels is not None:
            numbers = sum(fold.size for fold in state.sketch(last).folds)
            parcels = Parcels(state)
            step = Step(last, torch.zeros(numbers), 1.0)
            state.apply(step)
            parcels.remember(step)
            common = Broadcast(config, last, mechanism, {}, parcels.head()).to_records()
            return RecordDict({**common, **parcels.parcel(0)})
        arrays = state.broadcast_arrays(last) | state.largest_bases()
        return Broadcast(config, last, mechanism, arrays).to_records()

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        return self.state.broadcast_arrays(server_round), {}

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        units = self.units(aggregate)
        mean, deviation = aggregate.sum.double() / units, aggregate.noise_std / units
        step = Step(server_round, mean.float().cpu(), deviation)
        self._ranks = self.state.ranks(server_round)
        folds = self.state.sketch(server_round).folds
        scaled = isotropic(settings_of(self.config))
        self._energy = captured_energy(folds, self._ranks, step.mean, deviation, scaled)
        self.state.apply(step)
        self.model.load(self.state.vector)
        self._record(replace(step, given=self._renewed()))

    def metrics(self) -> dict[str, float | None]:
        if self.arrived == 0:  # no client was drawn
            return {"sketch_energy": None, "sketch_rank": None}
        return {"sketch_energy": self._energy, "sketch_rank": float(sum(self._ranks))}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.state.load_state_dict(state)
        self.model.load(self.state.vector)
        if self.parcels is not None:  # the steps that led to this state are not in the checkpoint
            self.parcels = Parcels(self.state)

    def _renewed(self) -> dict[str, torch.Tensor]:
        """Compute the public directions anew if it is time to. Returns what devices need from now on, or nothing if no
        direction changed. (Those of the first layer never change.)"""
        settings, state = settings_of(self.config), self.state
        if not isinstance(state, PublicState) or state.steps % settings.refresh:
            return {}
        directions = public_directions(settings, state.folds, self.model, self.job.public)
        return directions if state.give(directions) else {}

    def _record(self, step: Step) -> None:
        """Keep a step that the state has made, for devices that will replay it."""
        if self.parcels is not None:
            self.parcels.remember(step)


def _state(config: Config, model: FlatModel, vector: torch.Tensor) -> DomeState | PublicState:
    public = settings_of(config).directions == "public"
    return (PublicState if public else DomeState)(config, model, vector)


def replica(config: Config, model: FlatModel) -> DomeState | PublicState:
    """Return the state that a device starts from with `broadcast=replay`: version 0, made from the configuration
    alone. It is on the CPU, wherever the device trains."""
    return _state(config, model, model.vector.to("cpu", copy=True))


class DomeDevice(DeviceHalf):
    """The device half: S^T (g - m_ref) for every privacy unit."""

    def __init__(self) -> None:
        self._last = LastMade[LayerwiseSketch | BlockSketch]()

    def rows(self, work: LocalWork) -> torch.Tensor:
        shorten = self._shorten(work.broadcast, work.model, [work.memory])
        return unit_rows(work.broadcast.config, work.model, work.shard, work.generator, shorten)

    def blocks(self, work: LocalWork) -> Iterator[Rows]:
        if work.broadcast.config.privacy.unit is not Unit.EXAMPLE:
            return super().blocks(work)
        sketch = self._factor_sketch(work.broadcast, work.model)
        if sketch is not None:
            return factored_blocks(work, sketch)
        dense = self._shorten(work.broadcast, work.model, [work.memory])
        return map(Rows.of, example_blocks(work.model, work.shard, dense))

    def batched_rows(self, work: BatchedWork) -> torch.Tensor | None:
        return batched_unit_rows(work, self._shorten(work.broadcast, work.model, work.memories))

    def batched_blocks(self, work: BatchedWork) -> list[Rows] | None:
        sketch = self._factor_sketch(work.broadcast, work.model)
        return None if sketch is None else batched_factored(work, sketch)

    def _factor_sketch(self, broadcast: Broadcast, model: FlatModel) -> FactorSketch | None:
        """Return the sketch for gradients that are given as factors. None if m_ref is subtracted from them, because it
        has no factors, or if the sketch is not layer-wise."""
        settings = settings_of(broadcast.config)
        if "reference" in broadcast.arrays or settings.sketch != "layerwise":
            return None
        sketch, bases = self._sketch(broadcast, model)
        assert isinstance(sketch, LayerwiseSketch)
        public = settings.directions == "public"
        return FactorSketch(sketch, bases if public else None)

    def _shorten(
        self, broadcast: Broadcast, model: FlatModel, memories: Sequence[Memory]
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function that sketches rows. With error feedback the rows are one for each of these memories."""
        feedback = settings_of(broadcast.config).error_feedback
        sketch, _ = self._sketch(broadcast, model)

        def shorten(rows: torch.Tensor) -> torch.Tensor:
            if "reference" in broadcast.arrays:
                rows = rows - broadcast.arrays["reference"].to(rows)
            if not feedback:
                return sketch.forward(rows)
            # The part that the sketch missed is added in the client's next round. The part that the clip cuts off is
            # not: it would grow without bound.
            missed = [m.get(RESIDUAL, torch.zeros(1, rows.shape[1])) for m in memories]
            rows = rows + feedback * torch.cat(missed).to(rows)
            sketched = sketch.forward(rows)
            residuals = rows - sketch.adjoint(sketched)
            for memory, residual in zip(memories, residuals, strict=True):
                memory[RESIDUAL] = residual[None].clone()
            return sketched

        return shorten

    def _sketch(
        self, broadcast: Broadcast, model: FlatModel
    ) -> tuple[LayerwiseSketch | BlockSketch, str]:
        """Return the sketch of a broadcast and a hash of its directions. It is made once a round for all clients that
        share a process."""
        settings = settings_of(broadcast.config)
        folds = folds_of(settings, model, broadcast.round)
        known = [broadcast.arrays.get(f"basis-{i}") for i in range(len(folds))]
        bases = digest("none" if basis is None else basis for basis in known)
        key = (broadcast.config, broadcast.round, bases)
        seed = probe_seed(broadcast.config, broadcast.round)
        return self._last.of(key, lambda: sketch_of(settings, folds, known, seed)), bases


def captured_energy(
    folds: Sequence[Fold],
    ranks: Sequence[int],
    mean: torch.Tensor,
    deviation: float,
    isotropic: bool,
) -> float | None:
    """Estimate from the sketch alone which share of the mean gradient's energy the sketch sees.

    The learned directions see one part of the energy. The probes see a random share of the rest, so their noise-free
    energy, scaled up, is an unbiased estimate of the rest. (Isotropic probes are scaled already.) None if noise hides
    all energy, or if a fold has no probes.
    """
    seen = whole = 0.0
    end = 0
    for fold, rank in zip(folds, ranks, strict=True):
        sketched = mean[end : end + fold.size].double().view(fold.rows, fold.rank)
        end += fold.size
        energy = sketched.square().sum(dim=0) - fold.rows * deviation**2
        learned, probed = float(energy[:rank].sum()), float(energy[rank:].sum())
        if fold.rank == rank:
            return None
        missed = probe_length(fold, rank) ** 2
        rest = probed if isotropic else probed * missed
        seen += learned + rest / missed
        whole += learned + rest
    return min(1.0, max(0.0, seen / whole)) if whole > 0 else None


SERVER, DEVICE, REPLICA = Dome, DomeDevice, replica
