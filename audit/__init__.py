"""The audit: a run's real code is played with a canary present or not, and what adversaries can tell is held against what is claimed."""
