"""The gradients of single examples: their norms, weighted sums, projections, and the gradients themselves.

Formal guarantee: the result for an example depends on that example alone (`tasks.gradients.factors`), even if another
one leads to nan or inf.

All functions work on micro-batches that need about `memory` bytes, for any size of the batch.

**Places.** A matrix product may round a row in another way if the matrix has another number of rows. A hostile server
can send a model that makes such a difference as large as a clip, so the guarantee must also hold for rounding. On a
device that protects examples every micro-batch therefore has the same size, whatever the number of examples: callers
fill it up with blank places. And an example at which a model or a task of an installed package raises leaves its place
blank. Then the bits of a row are a function of the example, the model and its place in the micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedsketch.errors import ModelError
from fedsketch.tasks.gradients.factors import GradientPlan, plan_gradients, slot_gradients
from fedsketch.tasks.gradients.slot_gradients import OuterFactors, SlotGradients
from fedsketch.tasks.models.flat_model import FlatModel

MEMORY = 32 << 20  # bytes; more is not faster
PLACES = 64  # the largest micro-batch of a device that protects examples; its places are padded to a multiple
_BYTES = 4  # bytes of a float32

log = logging.getLogger(__name__)


class PerExample:
    """The gradients g_1, ..., g_B of the examples of a batch, for a model as it is at the time of each call.

    Norms are those of float32 gradients with a relative error of up to 1e-5. Above about 1e19 they are inf, because
    their squares are.
    """

    def __init__(self, model: FlatModel, memory: int = MEMORY, *, in_places: bool = False) -> None:
        """`in_places`: the number of examples is a multiple of `PLACES`, and all micro-batches have the same size."""
        self._model = model
        self._memory = memory
        self._in_places = in_places
        # Which examples of the present batch raised an exception, among those that were yielded.
        self.failed = torch.zeros(0, dtype=torch.bool)
        self._plans: dict[tuple[int, ...], GradientPlan] = {}  # by shape of an example

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the norms |g_i|, (B,)."""
        parts = [_norms(slots) for slots, _ in self._passes(inputs, targets)]
        return torch.cat([self._model.vector.new_empty(0), *parts])

    def weighted_sum(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return sum_i w_i g_i, (d,). An example of weight 0 is left out, even if its gradient is not finite."""
        if weights.shape != targets.shape:
            raise ModelError(
                f"{len(targets)} examples need as many weights, not {tuple(weights.shape)}: "
                "give one weight per example."
            )
        total = torch.zeros_like(self._model.vector)
        for slots, part in self._passes(inputs, targets):
            self._add(total, slots, weights[part])
        return total

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, weigh: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return sum_i w_i g_i, (d,), with weights that `weigh` computes from the norms, in the same pass.

        `weigh` gets some norms at a time and must treat each by itself: if a weight depended on other examples, the
        clip would not bound the influence of an example. Norms can be 0, and weights must be finite. An example with a
        norm that is not finite has weight 0.
        """
        total = torch.zeros_like(self._model.vector)
        for slots, _ in self._passes(inputs, targets):
            norms = _norms(slots)
            self._add(total, slots, torch.where(norms.isfinite(), weigh(norms), 0.0))
        return total

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradients themselves, (B, d)."""
        rows = self._rows(len(targets))
        for slots, part in self._passes(inputs, targets, self._model.size):
            self._fill(rows[part], slots)
        return rows

    def blocks(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Yield the gradients of some examples at a time, (b, d), in order. For an empty batch, one block without
        rows."""
        if len(targets) == 0:
            yield self._rows(0)
        for slots, part in self._passes(inputs, targets, 2 * self._model.size):
            rows = self._rows(part.stop - part.start)
            self._fill(rows, slots)
            yield rows

    def factors(
        self, inputs: Tensor, targets: Tensor
    ) -> Iterator[tuple[list[OuterFactors], Tensor]]:
        """Yield the factors of the gradients for each slot of `layout`, and the inputs, for some examples at a time,
        in order. If a layer's input is the example itself, the factor shares memory with it."""
        if len(targets) == 0:
            return
        dense = self._model.size - self._plan(inputs).factored
        for slots, part in self._passes(inputs, targets, 2 * dense):
            yield [slots.pop(slot.name).factors() for slot in self._model.layout], inputs[part]

    def projected(
        self, inputs: Tensor, targets: Tensor, bases: Tensor | Sequence[Tensor]
    ) -> Tensor:
        """Return V^T g_i, (B, k), for a matrix V (d, k). Or, with a matrix V_l (p_l, k_l) for each slot of `layout`,
        V_l^T times the slot's part of g_i, side by side.

        This is fastest if V.T is contiguous, as it is after an SVD.
        """
        self._check(bases)
        vector, layout = self._model.vector, self._model.layout
        if isinstance(bases, Tensor):
            result = vector.new_zeros(len(targets), bases.shape[1])
        else:
            result = vector.new_empty(len(targets), sum(basis.shape[1] for basis in bases))
        longest = max(slot.stop - slot.start for slot in layout)
        for slots, part in self._passes(inputs, targets, longest):
            end = 0
            for index, slot in enumerate(layout):
                gradients = slots.pop(slot.name)
                if isinstance(bases, Tensor):
                    result[part] += gradients.projected(bases[slot.start : slot.stop])
                    continue
                start, end = end, end + bases[index].shape[1]
                result[part, start:end] = gradients.projected(bases[index])
        return result

    # ------------------------------------------------------------------ inside
    def _passes(
        self, inputs: Tensor, targets: Tensor, extra: int = 0
    ) -> Iterator[tuple[dict[str, SlotGradients], slice]]:
        """Yield the gradients of micro-batches. Each example needs this many numbers besides those of the pass
        itself."""
        if len(targets) == 0:
            return
        device, how = self._model.device, self._plan(inputs)
        at_once = max(1, self._memory // (_BYTES * (how.scalars + extra)))
        if self._in_places:
            self.failed = torch.zeros(len(targets), dtype=torch.bool)
            at_once = 1 << (min(at_once, PLACES).bit_length() - 1)  # a divisor of PLACES
            if (
                not how.separate
            ):  # what raises for a blank place raises always, whatever the data are
                blank = torch.zeros_like(inputs[:at_once]), torch.zeros_like(targets[:at_once])
                slot_gradients(self._model, how, *(tensor.to(device) for tensor in blank))
        for start in range(0, len(targets), at_once):
            part = slice(start, min(start + at_once, len(targets)))
            batch = inputs[part].to(device), targets[part].to(device)
            if self._in_places:
                yield self._without_failures(how, *batch, part), part
            else:
                yield slot_gradients(self._model, how, *batch), part

    def _without_failures(
        self, how: GradientPlan, inputs: Tensor, targets: Tensor, part: slice
    ) -> dict[str, SlotGradients]:
        """Return the gradients of a micro-batch. If a pass raises, every example is tried with blank places around it,
        and those that raise become blank themselves."""

        def only(chosen: Tensor) -> dict[str, SlotGradients]:
            blank = ~chosen.to(inputs.device)
            kept = inputs.clone(), targets.clone()
            for tensor in kept:
                tensor[blank] = 0
            return slot_gradients(self._model, how, *kept)

        try:
            return slot_gradients(self._model, how, inputs, targets)
        except Exception as error:  # its text may repeat what a record contains
            log.error(
                "A record makes the local work fail (%s); each is tried alone", type(error).__name__
            )
        failed = torch.zeros(len(targets), dtype=torch.bool)
        for place, alone in enumerate(torch.eye(len(targets), dtype=torch.bool)):
            try:
                only(alone)
            except Exception:
                failed[place] = True
        self.failed[part] = failed
        return only(~failed)

    def _plan(self, inputs: Tensor) -> GradientPlan:
        shape = tuple(inputs.shape[1:])
        if shape not in self._plans:
            example = torch.zeros_like(inputs[:1]) if self._in_places else inputs[:1]
            self._plans[shape] = plan_gradients(self._model, example.to(self._model.device))
        return self._plans[shape]

    def _add(self, total: Tensor, slots: dict[str, SlotGradients], weights: Tensor) -> None:
        weights = weights.to(total)
        takes_part = weights != 0
        if not bool(takes_part.all()):
            slots = {name: gradients.select(takes_part) for name, gradients in slots.items()}
            weights = weights[takes_part]
        for slot in self._model.layout:
            total[slot.start : slot.stop] += slots[slot.name].weighted_sum(weights)

    def _rows(self, count: int) -> Tensor:
        return self._model.vector.new_empty(count, self._model.size)

    def _fill(self, rows: Tensor, slots: dict[str, SlotGradients]) -> None:
        for slot in self._model.layout:
            rows[:, slot.start : slot.stop] = slots.pop(slot.name).rows()

    def _check(self, bases: Tensor | Sequence[Tensor]) -> None:
        layout = self._model.layout
        given = [bases] if isinstance(bases, Tensor) else list(bases)
        wanted = [slot.stop - slot.start for slot in layout]
        if isinstance(bases, Tensor):
            wanted = [self._model.size]
        if [tuple(basis.shape[:-1]) for basis in given] != [(size,) for size in wanted]:
            raise ModelError(
                f"The gradients are projected by matrices of {wanted} rows, not of shapes "
                f"{[tuple(basis.shape) for basis in given]}: make them for this model."
            )


def _norms(slots: dict[str, SlotGradients]) -> Tensor:
    return torch.stack([slot.norms_squared() for slot in slots.values()]).sum(dim=0).sqrt()
