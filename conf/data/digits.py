"""scikit-learn's digits, which it carries itself."""

from fedsketch.conf.settings import PartitionedSettings

SETTINGS = PartitionedSettings
