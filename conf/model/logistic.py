"""Multinomial logistic regression."""

from fedsketch.conf.settings import ModelSettings

SETTINGS = ModelSettings
