"""Who decides on a device: its owner's policy, and the ledger of what it has shown."""
