"""The noise of a run: how much of it devices or the server add, and what a round reveals to whom."""
