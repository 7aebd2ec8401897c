from fedsketch import PartitionedSettings

SETTINGS = PartitionedSettings
