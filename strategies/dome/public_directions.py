"""The directions that public data give DOME (`directions=public`): per weight matrix the principal directions of the
layer's inputs.

The gradient G (o x i) of a layer is a sum of (error of the output) x (input), so its rows lie where inputs lie. The
sketch is G P with P = V diag((s_j / s_1)^-w): V the top r right singular vectors of the inputs on public data, s their
singular values. Gradients are largest along the first directions, so longer columns for the later ones (w > 0) share
out the clip, and the adjoint, which multiplies by them again, is a preconditioner. There are no probes: what lies
outside the span of V is never seen.

The server has the public data, devices do not: they are sent the directions.
"""

from collections.abc import Sequence

import torch

from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.principal import PrincipalDirections
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.layer_inputs import layer_inputs


def public_directions(
    settings: DomeConfig, folds: Sequence[Fold], model: FlatModel, public: Examples
) -> dict[str, torch.Tensor]:
    """P of every fold that is sketched, by its index: columns x rank. Zeros where public data span fewer directions
    than that."""
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
    """The directions in the layout in which they are sent."""
    scaled = torch.zeros(len(directions), rank)
    if len(values):
        scaled[:, : len(values)] = directions * (values / values[0]) ** -scaling
    return scaled
