"""Strategies, one a file. `algorithm.py` is what their authors need; `noise/`, `rounds/` and `local/` are what they
share. `registry.py` finds them by name."""
