"""The trackers that come with fedsketch. Each needs a package of its own, and imports it when it is chosen."""
