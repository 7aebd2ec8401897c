"""DOME's directions from public data (`directions=public`): for each weight matrix the principal directions of the
layer's inputs.

The gradient G (outputs x inputs) of a layer is a sum of products (error of the output) x (input), so its rows lie in
the span of the inputs. The sketch is G P with P = V diag((s_j / s_1)^-w). V are the top r right singular vectors of
the layer's inputs on public data, s their singular values, w is `strategy.scaling`. Gradients are largest along the
first directions. With w > 0 the later columns of P are longer, so the clip affects all directions more equally. The
adjoint multiplies by P once more and thereby acts as a preconditioner. There are no random probes: the part of a
gradient outside the span of V is never seen.

Only the server has the public data. It sends the directions to the devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.row_space import PrincipalDirections
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients.layer_inputs import layer_inputs
from fedsketch.tasks.models.flat_model import FlatModel


def public_directions(
    settings: DomeConfig, folds: Sequence[Fold], model: FlatModel, public: Examples
) -> dict[str, torch.Tensor]:
    """Return P (columns x rank) of every fold that is sketched, by the fold's index. If the public data span fewer
    directions than the rank, the remaining columns are zero."""
    slots = {slot.start: slot.name for slot in model.layout}
    sketched = {slots[fold.start]: i for i, fold in enumerate(folds) if not fold.whole}
    found = {name: PrincipalDirections(folds[i].columns) for name, i in sketched.items()}
    for part in layer_inputs(model, public, list(sketched)):
        for name, rows in part.items():
            found[name].feed(rows)
    return {
        str(i): _scaled(*found[name].top(folds[i].rank), settings.scaling, folds[i].rank)
        for name, i in sketched.items()
    }


def _scaled(
    directions: torch.Tensor, values: torch.Tensor, scaling: float, rank: int
) -> torch.Tensor:
    """Scale the directions, and fill up with columns of zeros to the rank, which is the shape in which they are
    sent."""
    scaled = torch.zeros(len(directions), rank)
    if len(values):
        scaled[:, : len(values)] = directions * (values / values[0]) ** -scaling
    return scaled
