"""The configuration comes once, is found by its hash, and is asked for by devices that lost it."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedsketch.client.app import make_app
from fedsketch.conf import compose
from fedsketch.delivery.records import SETTINGS
from fedsketch.delivery.settings_once import SettingsOnce, remember, text_named
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import Aborted, WrappedGrid
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of
from tests.small import UNMASKED, small

MASKED = ["secagg=pairwise", "secagg.colluders=0"]


# ---------------------------------------------------------------- the two halves
def test_a_device_is_sent_the_text_that_it_does_not_have() -> None:
    server = SettingsOnce()
    first = server.name("one")
    assert (server.version, SETTINGS in server.parcel(0), SETTINGS in server.parcel(1)) == (
        1,
        True,
        False,
    )
    assert server.name("one") == first
    assert server.version == 1
    assert server.name("two") != first
    assert (server.version, SETTINGS in server.parcel(1), SETTINGS in server.parcel(2)) == (
        2,
        True,
        False,
    )
    assert server.name("one") == first
    assert SETTINGS in server.parcel(1)  # a device remembers the last one only


def test_a_text_is_taken_by_its_hash_alone() -> None:
    server, state = SettingsOnce(), RecordDict()
    name = server.name("one")
    assert text_named(name, server.whole(), state) == "one"
    remember("one", state)
    assert text_named(name, RecordDict(), state) == "one"
    other = RecordDict({SETTINGS: ConfigRecord({"text": "two"})})
    assert text_named(name, other, state) == "one"
    assert text_named(name, other, RecordDict()) is None
    assert text_named(name, RecordDict({SETTINGS: ConfigRecord({"text": 1})}), RecordDict()) is None
    assert text_named(b"", server.whole(), state) is None


# ---------------------------------------------------------------- in rounds
class _Wire(WrappedGrid):
    """Remembers the train messages, and may put another text into them."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__(grid)
        self.sent: list[RecordDict] = []
        self.instead: str | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        outgoing = list(messages)
        for message in outgoing:
            if message.metadata.message_type == "train":
                if self.instead is not None and SETTINGS in message.content:
                    message.content[SETTINGS] = ConfigRecord({"text": self.instead})
                self.sent.append(RecordDict(dict(message.content)))
        return super().push_messages(outgoing)

    def with_text(self) -> int:
        """How many messages had the text, since the last call."""
        count = sum(SETTINGS in content for content in self.sent)
        self.sent.clear()
        return count


class _Run:
    """Three devices, and the server's grids."""

    def __init__(self, overrides: list[str]) -> None:
        config = compose(small("strategy=dp_fedavg", *overrides, clients=3))
        self.devices = simulated_devices(config)
        workload = Workload(config)
        self.strategy: Strategy[Any] = make_strategy(config, workload, workload.model())
        self.local = LocalGrid(make_app(), 3)
        self.wire = _Wire(self.local)
        self.grid = wrap_grid(self.wire, config)

    def round(self, number: int, text: str | None = None) -> list[Message]:
        asked = ask(self.strategy, number, self.grid)
        if text is not None:
            asked[0].content.config_records["head"]["config"] = text
        return list(self.grid.send_and_receive(asked, timeout=60))


@pytest.fixture(params=[MASKED, UNMASKED], ids=["masked", "unmasked"])
def run(request: pytest.FixtureRequest) -> Iterator[_Run]:
    made = _Run(request.param)
    with made.devices:
        yield made


def test_the_text_travels_in_the_first_round_only(run: _Run) -> None:
    run.round(1)
    assert run.wire.with_text() == 3
    run.round(2)
    assert len(run.wire.sent) == 3
    for content in run.wire.sent:
        assert len(content.config_records["head"]["config"]) == 32  # type: ignore[arg-type]
    assert run.wire.with_text() == 0


def test_a_device_that_lost_it_is_sent_it_again(run: _Run) -> None:
    run.round(1)
    run.wire.sent.clear()
    del run.local._states[3][SETTINGS]
    run.round(2)
    assert len(run.wire.sent) == 4
    assert run.wire.with_text() == 1
    assert len(coordinator_of(run.strategy).nodes) == 3


def test_another_text_is_not_taken_and_not_remembered(run: _Run) -> None:
    text = str(ask(run.strategy, 1, run.grid)[0].content.config_records["head"]["config"])
    run.wire.instead = text.replace('"seed":', '"seed": ')
    try:
        replies = run.round(1)
    except Aborted:
        replies = []
    assert all("update" not in reply.content for reply in replies)
    assert run.wire.with_text() == 6  # each device asked again, once
    assert all(SETTINGS not in state for state in run.local._states.values())


def test_a_new_text_is_sent_to_all_who_have_the_old_one(run: _Run) -> None:
    run.round(1)
    run.wire.sent.clear()
    text = str(ask(run.strategy, 2, run.grid)[0].content.config_records["head"]["config"])
    run.round(2, text.replace('"seed":', '"seed": '))
    assert run.wire.with_text() == 3


def test_a_text_without_end_is_not_remembered() -> None:
    """It would be kept by every node."""
    run = _Run(UNMASKED)
    with run.devices:
        text = str(ask(run.strategy, 1, run.grid)[0].content.config_records["head"]["config"])
        for reply in run.round(1, text + " " * (1 << 16)):
            assert reply.has_error() or "update" not in reply.content
        assert all(SETTINGS not in state for state in run.local._states.values())
