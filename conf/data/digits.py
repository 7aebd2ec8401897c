"""The digits that come with scikit-learn."""

from fedsketch.conf.settings import PartitionedSettings

SETTINGS = PartitionedSettings
