"""The error that a device raises when it refuses to release what it computed."""


class UnsafeUpdateError(ValueError):
    """The update cannot be released safely. Nothing has left the device."""
