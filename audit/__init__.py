"""The audit: runs the real code with and without a canary, and compares what adversaries can tell with what is
claimed."""
