"""Names of the records that carry a device's parcel (`replay.parcels`) or frozen part (`replay.frozen`), for those that must not import
torch."""

PARCEL = "parcel"
PARCEL_ARRAYS = "parcel-arrays"
STALE = "stale"  # in the reply of a device that needs the whole
FROZEN = "frozen"
FEATURES = "features"
FROZEN_ARRAYS = "frozen-arrays"
