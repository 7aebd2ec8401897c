"""Releases, the theorems that say what each one costs, and the accountant that composes them."""
