"""What a run writes to disk before it asks clients, so that what they revealed is charged even if the run is killed."""

from typing import NamedTuple


class Attempt(NamedTuple):
    """A cohort of this size was about to be asked, for a round of training or for an evaluation of the round's
    model."""

    round: int
    cohort: int
    evaluation: bool = False
