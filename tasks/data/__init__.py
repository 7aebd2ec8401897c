"""The data that a model learns from: data sets, their partitions, and the files of a device."""
