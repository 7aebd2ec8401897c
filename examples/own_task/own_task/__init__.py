"""A task of one's own: visits to hospitals, from a table to a private federated model."""
