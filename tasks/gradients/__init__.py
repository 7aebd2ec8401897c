"""The gradients of single examples and of several clients at once."""
