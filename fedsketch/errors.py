"""Every error that fedsketch raises on purpose. The message is one sentence that says what is wrong and what to change.

`FedsketchError` is the base of all of them. A command prints the sentence and ends with exit code 1. Any other
exception is a bug. Secure aggregation is a library of its own, with a base of its own (`secagg.SecAggError`); where it
refuses the settings of a run, fedsketch raises a `ConfigError`.
"""

from __future__ import annotations


class FedsketchError(Exception):
    """Base of all errors for users."""


# ---------------------------------------------------------------- the configuration and what it names
class ConfigError(FedsketchError, ValueError):
    """The configuration cannot be run."""


class UsageError(FedsketchError, ValueError):
    """The arguments of a command do not fit together, or name something that is not there."""


class ImpossibleBudgetError(FedsketchError, ValueError):
    """No amount of noise fits the privacy budget."""


class RingTooSmallError(FedsketchError, ValueError):
    """The integers of secure aggregation are too small for so many clients and so much noise."""


class UnsupportedReleaseError(FedsketchError, ValueError):
    """No theorem covers what a run would release, so its cost is not known."""


class TaskError(FedsketchError, ValueError):
    """The data, their partition or the model cannot be used as configured."""


class DataError(TaskError):
    """A data set is unknown, missing or damaged."""


class PartitionError(TaskError):
    """The examples cannot be distributed over the clients as configured."""


class ModelError(TaskError):
    """A model is unknown, does not fit the data, or cannot be trained privately."""


class DeviceError(TaskError):
    """The configured processor does not exist on this machine."""


# ---------------------------------------------------------------- a run
class TooFewClients(FedsketchError):
    """Not enough clients are connected, or too few of them delivered."""


class RoundAborted(FedsketchError):
    """Too few clients delivered, so the round must not be applied. Nothing was changed."""


class CutShort(FedsketchError):
    """A run stopped before its last round, because attempts that failed had spent its budget. Its results are in its
    folder."""


class CheckpointError(FedsketchError, ValueError):
    """A run cannot be resumed from its folder, or the folder belongs to another run."""


class ReportError(FedsketchError, ValueError):
    """A run or a comparison cannot be shown."""


class FlowerError(FedsketchError):
    """A program of Flower did not do what it was asked for."""


class RunFailed(FlowerError):
    """A run on a server ended with an error."""


class ClusterError(FedsketchError):
    """A Ray cluster cannot be used."""


# ---------------------------------------------------------------- devices
class UnsafeUpdateError(FedsketchError, ValueError):
    """An update cannot be released safely. Nothing has left the device."""


class UnsoundMechanismError(FedsketchError, ValueError):
    """A record does not describe a mechanism, or its numbers contradict each other."""


class ForeignCode(FedsketchError):
    """Code that is not the owner's would run on a device."""


class RegistrationError(FedsketchError, ValueError):
    """A device cannot be registered with a server."""


class CertificateError(FedsketchError, ValueError):
    """A key or a certificate is missing, damaged or does not fit."""
