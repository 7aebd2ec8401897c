"""Grids around Grids: each changes one thing about messages on their way."""
