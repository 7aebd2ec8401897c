"""How a device turns what it computed into an upload: clipping, noise, encodings, randomness."""
