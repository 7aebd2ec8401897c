"""Secure aggregation for Flower's Message API: the server learns sums, not updates.

On the server wrap the grid, on the devices make the ClientApp here::

    app = secagg.client_app(secagg.FixedPoint(), lambda context: MyGuard(context))
    ...
    strategy.start(grid=SecAggGrid(grid, SecAggOptions(drops=0.1), FixedPoint()), ...)

The package stands alone: it needs numpy, cryptography and Flower.
"""

from __future__ import annotations

from .codec import Codec, Sum, VectorFormat
from .device_text import clean_text
from .errors import Aborted, Malformed, Refusal, SecAggError, SettingsError
from .fixed_point import FixedPoint
from .grid import SecAggGrid
from .guard import Guard, SimulationGuard, SimulationRoster
from .identity import Directory, Identity, Roster
from .mod import client_app
from .moduli import modulus_of, ring_sizes
from .names import (
    MOST_IN_RECORD,
    RECORD,
    REFUSAL,
    SURVIVORS,
    ProtocolName,
    is_train,
    vector_in,
)
from .options import SecAggOptions
from .packing import Ring, centred, reduce, ring_dtype
from .pairwise.settings import PairwiseSettings
from .report import RoundReport
from .round_trip import RoundTrip
from .settings import RoundSettings, Sizes
from .traffic import Traffic, cheapest, is_possible, planned_traffic, protocol_bytes
from .two_trips.settings import TwoTripsSettings
from .wrapped_grid import WrappedGrid

__all__ = [
    "MOST_IN_RECORD",
    "RECORD",
    "REFUSAL",
    "SURVIVORS",
    "Aborted",
    "Codec",
    "Directory",
    "FixedPoint",
    "Guard",
    "Identity",
    "Malformed",
    "PairwiseSettings",
    "ProtocolName",
    "Refusal",
    "Ring",
    "Roster",
    "RoundReport",
    "RoundSettings",
    "RoundTrip",
    "SecAggError",
    "SecAggGrid",
    "SecAggOptions",
    "SettingsError",
    "SimulationGuard",
    "SimulationRoster",
    "Sizes",
    "Sum",
    "Traffic",
    "TwoTripsSettings",
    "VectorFormat",
    "WrappedGrid",
    "centred",
    "cheapest",
    "clean_text",
    "client_app",
    "is_possible",
    "is_train",
    "modulus_of",
    "planned_traffic",
    "protocol_bytes",
    "reduce",
    "ring_dtype",
    "ring_sizes",
    "vector_in",
]
