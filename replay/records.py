"""Names of the records that carry a device's parcel (`replay.parcels`), for those that must not import torch."""

PARCEL = "parcel"
PARCEL_ARRAYS = "parcel-arrays"
STALE = "stale"  # in the reply of a device that needs the whole
