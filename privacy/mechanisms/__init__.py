"""How what a device computed becomes what leaves it: bounds, noise, encodings, randomness."""
