"""Secure aggregation for Flower's Message API: the server learns sums, not updates.

On the server wrap the grid, on the devices make the ClientApp here::

    app = secagg.client_app(secagg.FixedPoint(), lambda context: MyGuard(context))
    ...
    strategy.start(grid=SecAggGrid(grid, SecAggPlan(drops=0.1), FixedPoint()), ...)

The package stands alone: it needs numpy, cryptography and Flower.
"""

from secagg.codec import Codec, Sum, VectorPlan
from secagg.errors import Aborted, Malformed, Refusal, SecAggError, SettingsError
from secagg.fixed_point import FixedPoint
from secagg.grid import SecAggGrid
from secagg.guard import Guard, SimulationGuard, SimulationRoster
from secagg.identity import Directory, Identity, Roster
from secagg.mod import client_app
from secagg.packing import Ring, centred, reduce, ring_dtype
from secagg.plan import SecAggPlan
from secagg.report import RoundReport
from secagg.settings import RoundSettings, Sizes

__all__ = [
    "Aborted",
    "Codec",
    "Directory",
    "FixedPoint",
    "Guard",
    "Identity",
    "Malformed",
    "Refusal",
    "Ring",
    "Roster",
    "RoundReport",
    "RoundSettings",
    "SecAggError",
    "SecAggGrid",
    "SecAggPlan",
    "SettingsError",
    "SimulationGuard",
    "SimulationRoster",
    "Sizes",
    "Sum",
    "VectorPlan",
    "centred",
    "client_app",
    "reduce",
    "ring_dtype",
]
