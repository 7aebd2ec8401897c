"""Sketches: linear maps from R^d to R^k and back. Some are computed from a seed, others are learned from gradients.
This package also has the methods that learn them."""
