"""Observers of a run: displays, event streams and trackers. Trackers need packages of their own, which are imported
when they are chosen."""
