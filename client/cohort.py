"""A whole cohort in one process (`runtime=cohort`): what the server would see of it, without messages and masks.

Nothing here is a device's: there is no policy, no ledger and no secret. A sum is that of the vectors which devices would have released.

- `per_device`: every client's upload is made as its device would make it, by the same calls in the same order, and the uploads are added
  up. Sums of integers have no rounding, so they are bit by bit those that secure aggregation gives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict
from numpy.typing import NDArray

from fedsketch.client.workspace import Workspace
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.sums import upload_sum
from fedsketch.strategies.shared.uploads import MECHANISM, uploaded


@dataclass
class CohortSum:
    """The sum of the uploads of those who are in it, and why others are not; no vector if nobody is."""

    members: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    vector: NDArray[Any] | None = None


class CohortWorkspace(Workspace):
    """Trains for all clients of a round."""

    def __init__(self, settings: CohortRuntimeConfig) -> None:
        super().__init__()
        self._settings = settings
        self._states: dict[int, RecordDict] = {}  # of clients that have something to keep

    def sums(self, content: RecordDict, groups: Sequence[Sequence[int]]) -> Iterator[CohortSum]:
        """One sum for each group of clients, which are disjoint; where uploads cannot be added up, one for each client."""
        mechanism = mechanism_from_record(content.config_records[MECHANISM])
        if not mechanism.adds:
            groups = [[client] for group in groups for client in group]
        for group in groups:
            yield self._one_by_one(content, group, mechanism.ring is not None)

    def _one_by_one(self, content: RecordDict, clients: Sequence[int], ring: bool) -> CohortSum:
        """As the devices would do it."""
        result = CohortSum()
        for client in clients:
            state = self._states.get(client, RecordDict())
            try:
                vector = uploaded(self.take_part(content, client, state, None))
            except Exception as error:  # as in the other runtimes: a client's failure is its own
                result.lost[client] = f"{type(error).__name__}: {error}"
                continue
            if state:
                self._states[client] = state
            result.members.append(client)
            known = [] if result.vector is None else [result.vector]
            result.vector = upload_sum([*known, vector]) if len(clients) > 1 else vector
        return result
