"""Models as vectors, and what is in them: networks, frozen features, the part that is trained."""
