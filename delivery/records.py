"""Names of the records with a device's parcel (`delivery.parcels`), frozen part (`delivery.frozen_part`) or settings
(`delivery.settings_once`), for modules that must not import torch."""

from __future__ import annotations

PARCEL = "parcel"
PARCEL_ARRAYS = "parcel-arrays"
STALE = "stale"  # key in the reply of a device that needs the whole state
FROZEN = "frozen"
FEATURES = "features"
FROZEN_ARRAYS = "frozen-arrays"
SETTINGS = "settings"
