"""Errors of this package: each message is one sentence that says what to change."""


class TaskError(ValueError):
    """The data, their partition or the model cannot be used as configured."""


class DataError(TaskError):
    """A data set is unknown, missing or damaged."""


class PartitionError(TaskError):
    """The examples cannot be distributed over the clients as configured."""


class ModelError(TaskError):
    """A model is unknown, does not fit the data, or cannot be trained privately."""


class DeviceError(TaskError):
    """The configured processor does not exist on this machine."""
