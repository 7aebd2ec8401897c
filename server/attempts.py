"""What a run writes down before it asks anybody, so that a kill cannot make it forget what was seen."""

from typing import NamedTuple


class Attempt(NamedTuple):
    """A cohort of this size was about to be asked for a round, or for an evaluation of the model that the round had made."""

    round: int
    cohort: int
    evaluation: bool = False
