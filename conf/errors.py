"""The error of this package."""


class ConfigError(ValueError):
    """The configuration cannot be run; the message is one sentence for the user."""
