"""Decides what a device does: its owner's policy, and the ledger of what it has revealed."""
