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

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.delivery.parcels import Parcels
from fedsketch.delivery.steps import Step
from fedsketch.sketching.blocks import BlockSketch
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch, probe_length
from fedsketch.sketching.sketch import digest
from fedsketch.strategies.algorithm import Aggregate, Clients, DeviceHalf, Payload, Strategy
from fedsketch.strategies.dome.learned_sketch import folds_of, isotropic, sketch_of
from fedsketch.strategies.dome.printed_state import PrintedState
from fedsketch.strategies.dome.public_directions import public_directions
from fedsketch.strategies.dome.public_state import PublicState
from fedsketch.strategies.dome.state import DomeState, SketchedState, probe_seed
from fedsketch.strategies.local.row_factors import FactorSketch
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.models.flat_model import FlatModel

RESIDUAL = "residual"
State = SketchedState | PublicState


class Dome(Strategy[DomeConfig]):
    """The server half."""

    def start(self) -> None:
        # With replay, devices repeat the server's steps on their CPUs, so the server also makes them on a CPU.
        vector = self.model.vector
        self.state = _state(self.config, self.model, vector.cpu() if self._replays else vector)
        self._parcels = Parcels(self.state) if self._replays else None
        self._ranks: list[int] = []  # the number of learned directions in use, per fold
        self._energy: float | None = None
        self._measured = False
        given = self._renewed()
        if given:  # a separate step for replay, before the first round
            self._remember(Step(0, torch.empty(0), 0.0, given))

    @property
    def _replays(self) -> bool:
        return self.settings.broadcast == "replay"

    @property
    def parcels(self) -> Parcels | None:
        return self._parcels

    def upload_length(self, server_round: int) -> int:
        return sum(fold.size for fold in folds_of(self.settings, self.model, server_round))

    def planned_broadcast(self) -> tuple[Payload, RecordDict]:
        """Return a broadcast for the run's plan. With `broadcast=full` it has as many learned directions as possible.
        With `broadcast=replay` it is one for a device that also took part in the previous round."""
        last, state = self.config.rounds, replica(self.config, self.model)
        if not self._replays:
            return Payload(state.broadcast_arrays(last) | state.largest_bases()), RecordDict()
        size = sum(fold.size for fold in state.sketch(last).folds)
        parcels = Parcels(state)
        step = Step(last, torch.zeros(size), 1.0)
        state.apply(step)
        parcels.remember(step)
        return Payload(), parcels.parcel(0)

    def broadcast(self, server_round: int) -> Payload:
        return Payload() if self._replays else Payload(self.state.broadcast_arrays(server_round))

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        units = self.units(aggregate)
        mean, deviation = aggregate.sum.double() / units, aggregate.noise_std / units
        step = Step(server_round, mean.float().cpu(), deviation)
        self._ranks = self.state.ranks(server_round)
        folds = self.state.sketch(server_round).folds
        scaled = isotropic(self.settings)
        self._energy = captured_energy(folds, self._ranks, step.mean, deviation, scaled)
        self._measured = aggregate.clients > 0
        self.state.apply(step)
        self.model.load(self.state.vector)
        self._remember(replace(step, given=self._renewed()))

    def metrics(self) -> dict[str, float | None]:
        if not self._measured:  # the sum was noise alone, because no client was drawn
            return {"sketch_energy": None, "sketch_rank": None}
        return {"sketch_energy": self._energy, "sketch_rank": float(sum(self._ranks))}

    def state_dict(self) -> dict[str, Tensor]:
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state.load_state_dict(state)
        self.model.load(self.state.vector)
        if self._replays:  # the steps that led to this state are not in the checkpoint
            self._parcels = Parcels(self.state)

    def _renewed(self) -> dict[str, Tensor]:
        """Compute the public directions anew if it is time to. Returns what devices need from now on, or nothing if no
        direction changed. (Those of the first layer never change.)"""
        settings, state = self.settings, self.state
        if not isinstance(state, PublicState) or state.steps % settings.refresh:
            return {}
        directions = public_directions(settings, state.folds, self.model, self.workload.public)
        return directions if state.give(directions) else {}

    def _remember(self, step: Step) -> None:
        """Keep a step that the state has made, for devices that will replay it."""
        if self._parcels is not None:
            self._parcels.remember(step)


def _state(config: Config, model: FlatModel, vector: Tensor) -> State:
    settings = cast(DomeConfig, config.strategy)
    if settings.directions == "public":
        return PublicState(config, model, vector)
    return (PrintedState if settings.variant == "paper" else DomeState)(config, model, vector)


def replica(config: Config, model: FlatModel) -> State:
    """Return the state that a device starts from with `broadcast=replay`: version 0, made from the configuration
    alone. It is on the CPU, wherever the device trains."""
    return _state(config, model, model.vector.to("cpu", copy=True))


@dataclass(frozen=True)
class DomePrepared:
    """The sketch of a round, a hash of its directions, and m_ref, if it is subtracted."""

    settings: DomeConfig
    sketch: LayerwiseSketch | BlockSketch
    directions: str
    reference: Tensor | None


class DomeDevice(DeviceHalf[DomePrepared]):
    """The device half: S^T (g - m_ref) for every privacy unit."""

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> DomePrepared:
        settings = cast(DomeConfig, broadcast.config.strategy)
        folds = folds_of(settings, model, broadcast.round)
        known = [broadcast.arrays.get(f"basis-{i}") for i in range(len(folds))]
        sketch = sketch_of(settings, folds, known, probe_seed(broadcast.config, broadcast.round))
        directions = digest("none" if basis is None else basis for basis in known)
        return DomePrepared(settings, sketch, directions, broadcast.arrays.get("reference"))

    def shorten(self, prepared: DomePrepared, rows: Tensor) -> Tensor:
        if prepared.reference is not None:
            rows = rows - prepared.reference.to(rows)
        return prepared.sketch.forward(rows)

    def shorten_clients(self, prepared: DomePrepared, rows: Tensor, clients: Clients) -> Tensor:
        """Sketch the updates of clients. With error feedback, what the sketch missed is added in the client's next
        round. What the clip cuts off is not: it would grow without bound."""
        feedback = prepared.settings.error_feedback
        if not feedback:
            return self.shorten(prepared, rows)
        if prepared.reference is not None:
            rows = rows - prepared.reference.to(rows)
        missed = [m.get(RESIDUAL, torch.zeros(1, rows.shape[1])) for m in clients.memories]
        rows = rows + feedback * torch.cat(missed).to(rows)
        sketched = prepared.sketch.forward(rows)
        residuals = rows - prepared.sketch.adjoint(sketched)
        for memory, residual in zip(clients.memories, residuals, strict=True):
            memory[RESIDUAL] = residual[None].clone()
        return sketched

    def factor_sketch(self, prepared: DomePrepared) -> FactorSketch | None:
        """Return the sketch for gradients that are given as factors. None if m_ref is subtracted from them, because it
        has no factors, or if the sketch is not layer-wise."""
        if prepared.reference is not None or prepared.settings.sketch != "layerwise":
            return None
        assert isinstance(prepared.sketch, LayerwiseSketch)
        public = prepared.settings.directions == "public"
        return FactorSketch(prepared.sketch, prepared.directions if public else None)


def captured_energy(
    folds: Sequence[Fold],
    ranks: Sequence[int],
    mean: Tensor,
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
