"""Differential privacy: the mechanisms that protect data on the device, and the accounting of what they release."""
