"""The built-in trackers. Each needs a package of its own, and imports it when it is chosen."""
