"""The tasks that can be chosen: defaults in YAML, settings class beside them."""
