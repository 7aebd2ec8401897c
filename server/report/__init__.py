"""The reports of runs as HTML pages."""
