"""Releases, the theorems that price them, and the accountant that adds them up."""
