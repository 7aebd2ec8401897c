from fedsketch.conf.settings import TrackingSettings

SETTINGS = TrackingSettings
