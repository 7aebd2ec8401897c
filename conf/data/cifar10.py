"""CIFAR-10."""

from fedsketch.conf.settings import PartitionedSettings

SETTINGS = PartitionedSettings
