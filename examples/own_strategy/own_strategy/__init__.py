"""A strategy of one's own: a server that steps by signs."""
