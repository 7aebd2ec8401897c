from fedsketch.conf.settings import PartitionedSettings

SETTINGS = PartitionedSettings
