"""How often a test of a sound run may fail by chance. A user's audit takes a larger risk, because it is played once."""

CHANCE = 1e-7
