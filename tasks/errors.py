"""Errors of this package: each message is one sentence that says what to change."""


class TaskError(ValueError):
    """Something about the data, its partition or the model cannot work as asked."""


class DataError(TaskError):
    """A data set is unknown, missing or damaged."""


class PartitionError(TaskError):
    """The examples cannot be spread over the clients as asked."""


class ModelError(TaskError):
    """A model is unknown, does not fit the data, or cannot be trained privately."""


class DeviceError(TaskError):
    """The processor asked for is not there."""
