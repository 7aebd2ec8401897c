"""The audit: runs the real code with and without a canary (an artificial unit), and compares what adversaries can find
out with what is claimed."""
