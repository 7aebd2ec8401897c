"""Replay: devices compute the model from the released sums. What the server sends to whom, and what a device makes of
it."""
