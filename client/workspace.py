"""One data set and one model per process, however many clients it simulates."""

from functools import lru_cache

from fedsketch.conf import Config
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.job import Job


@lru_cache(maxsize=2)
def job_of(config: Config) -> Job:
    return Job(config)


@lru_cache(maxsize=2)
def model_of(config: Config) -> FlatModel:
    """To be loaded and used, not to be kept: the next message loads another."""
    return job_of(config).model()
