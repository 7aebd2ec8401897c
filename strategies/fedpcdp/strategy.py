"""FedPCDP, federated learning with projection, then clipping, and differential privacy (Sha, Liu, Liu, Chen 2023).

The paper is a withdrawn preprint: see docs/strategies/fedpcdp.md. Devices run DP-SGD in a subspace that the gradients
of public examples span.

1. Every `refresh` rounds the server takes m public examples. V are the top k right singular vectors of their
   gradients, computed for every tensor by itself (or for the whole gradient).
2. A device runs T local steps. In each, it draws a batch by Poisson sampling, projects the gradient of each example,
   clips each, adds noise to their sum (`privacy.mechanisms.noisy_training`), and moves its model by V times the noisy
   sum.
3. It sends the sum of all its steps in the coordinates of the subspace, V^T times the total change.
4. The server averages these, multiplies by V, and applies the result with its learning rate.

Variants:
- `projection=before`: project with V^T, then clip and add noise in the subspace. This is FedPCDP (Algorithm 2); with
  one client it is PCDP-SGD (Algorithm 1).
- `projection=after`: clip and add noise in R^d, then project the noisy sum with V V^T. This is FedPDP.
- `projection=none`: FedAvg with DP-SGD. V is the identity and no public data is needed.

Formal guarantees: those of `privacy.mechanisms.noisy_training`. V is made only from public data and earlier releases.
The clip comes after a row was multiplied by V, so a wrong or malicious V can change the accuracy, but not the privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting
from fedsketch.conf.strategy.fedpcdp import FedPcdpConfig
from fedsketch.delivery.steps import Step
from fedsketch.errors import DataError
from fedsketch.sketching.subspace import Block, SubspaceSketch, principal_directions
from fedsketch.strategies.algorithm import Aggregate, DeviceHalf, LocalWork, Payload
from fedsketch.strategies.fedpcdp.directions import Directions, shortest
from fedsketch.strategies.fedpcdp.state import SubspaceState, blocks, key_of, seed_of
from fedsketch.strategies.local.update import kept
from fedsketch.strategies.noise.training import TrainingNoise
from fedsketch.strategies.rounds.followed_strategy import FollowedStrategy
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients.per_example import PLACES, PerExample
from fedsketch.tasks.gradients.slot_gradients import OuterFactors
from fedsketch.tasks.models.flat_model import FlatModel


class FedPcdp(FollowedStrategy[FedPcdpConfig]):
    """The server half, with the paper's virtual client, which holds the public data."""

    def start(self) -> None:
        super().start()
        self._projects = not all(block.whole for block in self._blocks)
        public = self.workload.public if self._projects else None
        if public is not None and len(public) < self.settings.public_examples:
            raise DataError(
                f"There are {len(public):,} public examples and strategy.public_examples asks for "
                f"{self.settings.public_examples:,}: raise data.public, or lower it and strategy.rank."
            )
        self._refresh = -1  # the number of the refresh that computed `_bases`
        self._bases: list[torch.Tensor | None] = []
        self._sketch: SubspaceSketch | None = None
        self._rank: int | None = None
        if self.followed is not None:
            self._remember(self.completed(Step(0, torch.empty(0), 0.0)))

    @staticmethod
    def make_state(config: Config, model: FlatModel, vector: torch.Tensor) -> SubspaceState:
        return SubspaceState(config, model, vector)

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return blocks(self.settings, self.model)

    def upload_length(self, server_round: int) -> int:
        return sum(block.size for block in self._blocks)

    def plan_noise(self) -> TrainingNoise:
        privacy = self.config.privacy
        self._plan = TrainingNoise(
            self.config,
            self.upload_length(1),
            self.workload.largest_shard,
            privacy.fixed_clip,
            privacy.noise_multiplier,
            self.workload.examples / self.config.clients.total,
        )
        return self._plan

    def broadcast(self, server_round: int) -> Payload:
        """Send the directions (V) of every tensor that is not uploaded whole."""
        if self.followed is not None:
            return Payload()
        refresh = (server_round - 1) // self.settings.refresh
        if refresh != self._refresh:
            self._take_directions(refresh)
        bases = {key_of(i): basis for i, basis in enumerate(self._bases) if basis is not None}
        return Payload(bases)

    def mean(self, aggregate: Aggregate) -> torch.Tensor:
        return aggregate.sum / self.clients(aggregate)

    def expanded(self, step: Step) -> torch.Tensor:
        assert self._sketch is not None  # set when the round's broadcast was made
        return self._sketch.adjoint(step.mean)

    def completed(self, step: Step) -> Step:
        """Return the step with new directions, if the next round is to have them."""
        refresh = step.round // self.settings.refresh
        if refresh == self._refresh or not self._projects:
            return step
        assert isinstance(self.followed, SubspaceState)
        made = self._described_directions(refresh)
        self.followed.give({i: directions.tensors() for i, directions in made.items()})
        return replace(step, given=self.followed.described())

    def planned_given(self, server_round: int) -> dict[str, torch.Tensor]:
        if server_round % self.settings.refresh or not isinstance(self.followed, SubspaceState):
            return {}
        return self.followed.described()

    def metrics(self) -> dict[str, float | None]:
        return {"basis_rank": self._rank}

    def remarks(self) -> str:
        noise = self._plan
        one = noise.mechanism(self.config.clients.per_round)
        steps = "one step" if one.steps == 1 else f"{one.steps} steps"
        sentence = (
            f" The noise multiplier is that of one local step. A round has {steps}, and an example is in each with "
            f"probability {one.rate:.4g}, by a draw that the device keeps secret. Every device's own noise protects "
            "its examples, so the guarantee is the same against everybody, whatever the other clients do."
        )
        if self.config.privacy.accounting is Accounting.PAPER and math.isfinite(
            noise.paper_epsilon()
        ):
            sentence += f" The paper's conversion gives epsilon {noise.paper_epsilon():.4g}."
        return sentence

    def state_dict(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"refresh": self._refresh, "rank": self._rank}
        if self.followed is None:
            kept["bases"] = self._bases
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._refresh, self._rank = state["refresh"], state["rank"]
        if self.followed is not None:
            return
        self._use(
            [basis if basis is None else basis.to(self.model.device) for basis in state["bases"]]
        )

    # ------------------------------------------------------------------ the virtual client
    def _take_directions(self, refresh: int) -> None:
        bases: list[torch.Tensor | None] = []
        gradients = torch.empty(0)
        if self._projects:
            public = self._public_block(refresh)
            gradients = PerExample(self.model).gradients(public.inputs, public.targets)
        self._refresh, self._rank = refresh, 0
        for i, block in enumerate(self._blocks):
            if block.whole:
                bases.append(None)
                self._rank += block.size
                continue
            part = gradients[:, block.start : block.stop]
            directions, found = principal_directions(
                part, block.size, seed_of(self.config.seed, refresh, i)
            )
            bases.append(directions.half())  # the precision in which it is sent
            self._rank += found
        self._use(bases)

    def _described_directions(self, refresh: int) -> dict[int, Directions]:
        """Return the same in the form that devices follow, by block."""
        public = self._public_block(refresh)
        factors = self._factors(public)
        made = {
            i: shortest(factors[i], block.size, seed_of(self.config.seed, refresh, i))
            for i, block in enumerate(self._blocks)
            if not block.whole
        }
        whole = sum(block.size for block in self._blocks if block.whole)
        self._refresh = refresh
        self._rank = whole + sum(directions.found for directions in made.values())
        return made

    def _factors(self, public: Examples) -> list[OuterFactors]:
        """Return the gradients of public examples, for each block, as factors if they are outer products."""
        gradients = PerExample(self.model)
        if self.settings.basis == "whole":
            return [(gradients.gradients(public.inputs, public.targets), None)]
        passes = [pieces for pieces, _ in gradients.factors(public.inputs, public.targets)]
        return [_joined(parts) for parts in zip(*passes, strict=True)]

    def _use(self, bases: list[torch.Tensor | None]) -> None:
        self._bases = bases
        if bases:
            self._sketch = SubspaceSketch.restored(self._blocks, bases)

    def _public_block(self, refresh: int) -> Examples:
        """Return the m public examples of a refresh (the paper's G.3)."""
        count, all_of_them = self.settings.public_examples, len(self.workload.public)
        if self.settings.blocks == "random":
            generator = torch.Generator().manual_seed(seed_of(self.config.seed, refresh))
            return self.workload.public.take(
                torch.randperm(all_of_them, generator=generator)[:count]
            )
        number = 0 if self.settings.blocks == "fixed" else refresh % (all_of_them // count)
        return self.workload.public.take(torch.arange(number * count, (number + 1) * count))


def _joined(parts: tuple[OuterFactors, ...]) -> OuterFactors:
    """Return the factors of all examples, from those of some at a time."""
    lefts, rights = zip(*parts, strict=True)
    known = [right for right in rights if right is not None]
    return torch.cat(lefts), torch.cat(known) if known else None


class FedPcdpDevice(DeviceHalf[SubspaceSketch]):
    """The device half: a model that the mechanism trains."""

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> SubspaceSketch:
        parts = blocks(cast(FedPcdpConfig, broadcast.config.strategy), model)
        bases = [
            None if block.whole else broadcast.arrays[key_of(i)] for i, block in enumerate(parts)
        ]
        return SubspaceSketch.restored(parts, bases)

    def trained_model(self, prepared: SubspaceSketch, work: LocalWork) -> Training:
        config = work.broadcast.config
        clip = config.privacy.fixed_clip
        assert clip is not None  # or the config would not have passed
        settings = cast(FedPcdpConfig, config.strategy)
        return Training(work.model, work.shard, prepared, settings, clip)


class Training:
    """A `TrainedModel`, a model that a mechanism trains. Its rows are the gradients of examples. With
    `projection=before` they are in the coordinates of the subspace."""

    def __init__(
        self,
        model: FlatModel,
        shard: Examples,
        sketch: SubspaceSketch,
        settings: FedPcdpConfig,
        clip: float,
    ) -> None:
        self.examples = len(shard)
        self._model, self._shard, self._sketch = model, shard, sketch
        self._gradients = PerExample(model, in_places=shard.present is not None)
        self._settings, self._clip = settings, clip
        self._project_after = settings.projection == "after"
        self.width = model.size if self._project_after else sketch.shape[0]
        self._bases: torch.Tensor | list[torch.Tensor] | None = None
        if not self._project_after and not all(block.whole for block in sketch.blocks):
            bases = sketch.matrices(model.device)
            self._bases = bases[0] if len(bases) == 1 else bases

    def rows(self, chosen: torch.Tensor) -> Iterator[torch.Tensor]:
        drawn = self._shard.take(chosen)
        if drawn.present is not None:
            drawn = drawn.padded(PLACES)
        batch = drawn.inputs, drawn.targets
        made = self._gradients.blocks(*batch)
        if self._bases is not None:
            made = iter([self._gradients.projected(*batch, self._bases)])
        start = 0
        for block in made:
            rows = scaled(block, self._settings, self._clip)
            if drawn.present is not None:
                there = kept(self._gradients, drawn.present, start, len(rows))
                rows = rows.masked_fill(~there[:, None].to(rows.device), 0.0)
                rows = rows[: max(0, len(chosen) - start)]
            yield rows
            start += len(block)

    def step(self, update: torch.Tensor) -> None:
        kept = self._sketch.forward(update) if self._project_after else update
        move = self._sketch.adjoint(kept.to(self._model.vector))
        self._model.vector.sub_(move)

    def upload(self, total: torch.Tensor) -> torch.Tensor:
        return self._sketch.forward(total) if self._project_after else total


def scaled(rows: torch.Tensor, settings: FedPcdpConfig, clip: float) -> torch.Tensor:
    """Scale every row g to a norm of at most c, by the chosen clipping function (the paper's Section 6.2.2).

    The new norm is c |g| / (|g| + r) for `automatic`, c |g| / (|g| + r / (|g| + r)) for `adaptive`, and c for
    `normalised`. The mechanism clips once more, because rounding may exceed c. `flat` clipping is left to the
    mechanism.
    """
    if settings.clipping == "flat":
        return rows
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    r = settings.stabiliser
    shift = {"automatic": r, "normalised": 0.0, "adaptive": r / (norms + r)}[settings.clipping]
    lengths = norms + shift
    return rows * torch.where(lengths > 0, clip / lengths, 0.0)


SERVER, DEVICE, REPLICA = FedPcdp, FedPcdpDevice, FedPcdp.replica
