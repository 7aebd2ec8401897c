"""Devices that follow the model by the sums alone: what the server sends to whom, and what a device makes of it."""
