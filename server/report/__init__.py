"""The pages that runs leave behind, for people."""
