"""Secure aggregation for Flower's Message API: the server learns sums, not updates.

On the server wrap the grid, on the devices make the ClientApp here::

    app = secagg.client_app(secagg.FixedPoint(), lambda context: MyGuard(context))
    ...
    strategy.start(grid=SecAggGrid(grid, SecAggOptions(drops=0.1), FixedPoint()), ...)

The package stands alone: it needs numpy, cryptography and Flower.
"""

from typing import TYPE_CHECKING

from fedsketch.lazy import lazy

if TYPE_CHECKING:
    from fedsketch.secagg.codec import Codec, Sum, VectorFormat
    from fedsketch.secagg.errors import Aborted, Malformed, Refusal, SecAggError, SettingsError
    from fedsketch.secagg.fixed_point import FixedPoint
    from fedsketch.secagg.grid import SecAggGrid
    from fedsketch.secagg.guard import Guard, SimulationGuard, SimulationRoster
    from fedsketch.secagg.identity import Directory, Identity, Roster
    from fedsketch.secagg.mod import client_app
    from fedsketch.secagg.options import SecAggOptions
    from fedsketch.secagg.packing import Ring, centred, reduce, ring_dtype
    from fedsketch.secagg.report import RoundReport
    from fedsketch.secagg.settings import RoundSettings, Sizes
    from fedsketch.secagg.wrapped_grid import WrappedGrid
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Codec": "codec",
            "Sum": "codec",
            "VectorFormat": "codec",
            "Aborted": "errors",
            "Malformed": "errors",
            "Refusal": "errors",
            "SecAggError": "errors",
            "SettingsError": "errors",
            "FixedPoint": "fixed_point",
            "SecAggGrid": "grid",
            "Guard": "guard",
            "SimulationGuard": "guard",
            "SimulationRoster": "guard",
            "Directory": "identity",
            "Identity": "identity",
            "Roster": "identity",
            "client_app": "mod",
            "SecAggOptions": "options",
            "Ring": "packing",
            "centred": "packing",
            "reduce": "packing",
            "ring_dtype": "packing",
            "RoundReport": "report",
            "RoundSettings": "settings",
            "Sizes": "settings",
            "WrappedGrid": "wrapped_grid",
        },
    )

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
    "SecAggOptions",
    "SettingsError",
    "SimulationGuard",
    "SimulationRoster",
    "Sizes",
    "Sum",
    "VectorFormat",
    "WrappedGrid",
    "centred",
    "client_app",
    "reduce",
    "ring_dtype",
]
