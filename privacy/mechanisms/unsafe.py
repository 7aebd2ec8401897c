"""The error of a device that refuses to release what it computed."""


class UnsafeUpdateError(ValueError):
    """The update cannot be released safely; nothing has left the device."""
