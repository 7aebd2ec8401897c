"""Grids that wrap another Grid. Each changes one thing about the messages that pass through it."""
