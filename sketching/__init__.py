"""Linear maps R^d -> R^k and back, what they are made of (a matrix, a seed, layers), and how the learned ones are
learned."""
