"""The whole way of a message through a device: what comes back, with how much noise, and what never does."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from scipy import stats

from fedsketch.client.app import app
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import Gaussian
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import Aborted
from fedsketch.strategies.algorithm import Aggregate, LocalWork
from fedsketch.strategies.rounds.codec import uploaded
from tests.rounds import coordinator_of

MakeExchange = Callable[..., Any]
FALSE_ALARM = 1e-6
UNITS = ["client", "example"]
OPEN = ["privacy=none", "privacy.clip=null", "privacy.noise_multiplier=0"]


def _vectors(replies: list[Message]) -> NDArray[np.float64]:
    return np.stack([uploaded(reply.content).astype(np.float64) for reply in replies])


def _assert_noise(noise: NDArray[np.float64], std: float) -> None:
    """A chi-square test of independent normals with this standard deviation; false alarms: 1e-6."""
    low, high = stats.chi2.interval(1 - FALSE_ALARM, noise.size)
    assert low <= np.square(noise / std).sum() <= high


def _booked(exchange: Any, against: Against) -> float:
    """The standard deviation that the accountant is told of."""
    strategy = exchange.strategy
    mechanism = strategy.noise.releases(6, 6)[against].law
    assert isinstance(mechanism, Gaussian)
    return mechanism.noise_multiplier * strategy.config.privacy.clip


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "strategy", [["strategy=dp_fedavg"], ["strategy=dome", "strategy.sketch_dim=0.9"]]
)
def test_a_device_adds_the_noise_that_is_booked(
    make_exchange: MakeExchange, unit: str, strategy: list[str]
) -> None:
    """Two answers to the same request differ by two independent noises, and by nothing else."""
    exchange = make_exchange(f"privacy={unit}", *strategy)
    first, second = _vectors(exchange.replies()), _vectors(exchange.replies())
    _assert_noise((first - second) / 2**0.5, _booked(exchange, Against.SERVER))
    # Over the cohort the shares add up: devices do not share their noise.
    _assert_noise((first - second).sum(axis=0) / 2**0.5, _booked(exchange, Against.MODEL))


@pytest.mark.parametrize("unit", UNITS)
def test_noise_of_dropouts_is_made_up_for(make_exchange: MakeExchange, unit: str) -> None:
    exchange = make_exchange(f"privacy={unit}", "clients.tolerated_dropouts=0.5")
    difference = _vectors(exchange.replies()) - _vectors(exchange.replies())
    _assert_noise(difference[:3].sum(axis=0) / 2**0.5, 1.5 * 0.4)  # the fewest survivors


@pytest.mark.parametrize("unit", UNITS)
def test_the_noise_is_normal_and_centred(make_exchange: MakeExchange, unit: str) -> None:
    exchange = make_exchange(f"privacy={unit}")
    difference = (_vectors(exchange.replies()) - _vectors(exchange.replies())).ravel()
    normal = stats.norm(scale=2**0.5 * _booked(exchange, Against.SERVER))
    assert stats.kstest(difference, normal.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "secagg", [["secagg=none", "secagg.noise=skellam"], ["secagg=pairwise", "secagg.merged=false"]]
)
def test_integer_noise_of_a_sum_is_what_is_booked(
    make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch, secagg: list[str]
) -> None:
    """Devices with nothing to say: the decoded sum is noise. Skellam noise of this size is normal for a chi-square
    test."""
    monkeypatch.setattr("fedsketch.strategies.local.forms.rows", _says(0.0))
    exchange = make_exchange(*secagg)
    seen: list[Aggregate] = []
    monkeypatch.setattr(exchange.strategy, "update", lambda _, aggregate: seen.append(aggregate))
    for round in (1, 2, 3):
        coordinator_of(exchange.strategy).aggregate_train(round, exchange.replies(round))
    std = seen[0].noise_std
    assert std >= 1.5 * 0.4 * (1 - 1e-9)
    _assert_noise(torch.cat([aggregate.sum for aggregate in seen]).double().numpy(), std)


def _says(value: float) -> Callable[..., torch.Tensor]:
    """The rows of a device half: one, of this value."""

    def rows(half: object, prepared: object, work: LocalWork) -> torch.Tensor:
        return torch.full((1, work.model.size), value)

    return rows


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("huge", [1.0, 1e30, -3e38])
def test_no_update_however_large_passes_the_clip(
    make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch, huge: float, unit: str
) -> None:
    monkeypatch.setattr("fedsketch.strategies.local.forms.rows", _says(huge))
    exchange = make_exchange(
        "privacy.noise_multiplier=0", "privacy.epsilon=null", f"privacy={unit}"
    )
    norms = np.linalg.norm(_vectors(exchange.replies()), axis=1)
    assert (norms <= 0.4).all()
    assert (norms > 0.399).all()


@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_has_no_norm_is_an_error_and_not_a_vector(
    make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch, bad: float, noise: str
) -> None:
    monkeypatch.setattr("fedsketch.strategies.local.forms.rows", _says(bad))
    replies = make_exchange(f"secagg.noise={noise}").replies()
    assert len(replies) == 6
    for reply in replies:
        assert reply.has_error()
        assert "nothing was released" in reply.error.reason


def test_what_has_no_norm_aborts_a_masked_round(
    make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.strategies.local.forms.rows", _says(float("nan")))
    with pytest.raises(Aborted, match="nothing was released"):
        make_exchange("secagg=pairwise").replies()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_without_a_clip_nan_is_an_error_too(
    make_exchange: MakeExchange, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setattr("fedsketch.strategies.local.forms.rows", _says(bad))
    exchange = make_exchange(*OPEN)
    assert all(reply.has_error() for reply in exchange.replies())


def test_secret_noise_is_new_every_time_and_for_everybody(make_exchange: MakeExchange) -> None:
    exchange = make_exchange("privacy.randomness=secret")
    first, second = _vectors(exchange.replies()), _vectors(exchange.replies())
    assert (first != second).any(axis=1).all()


def test_seeded_noise_is_a_function_of_seed_client_and_round(make_exchange: MakeExchange) -> None:
    """Devices with nothing to say, so that only noise is compared."""
    noises = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsketch.strategies.local.forms.rows", _says(0.0))
        for seed in (1, 2):
            exchange = make_exchange("privacy.randomness=seeded", f"seed={seed}")
            for round in (1, 2):
                noises[seed, round] = _vectors(exchange.replies(round))
                assert np.array_equal(noises[seed, round], _vectors(exchange.replies(round)))
    rows = np.concatenate(list(noises.values()))
    assert len(np.unique(rows, axis=0)) == len(rows) == 24


def test_a_message_cannot_make_a_devices_noise_predictable(make_exchange: MakeExchange) -> None:
    """The server says `seeded` in the message, to devices whose runtime says nothing of the kind."""
    asking = make_exchange("privacy.randomness=seeded")
    make_exchange("privacy.randomness=secret")  # the devices' environment
    first, second = _vectors(asking.replies()), _vectors(asking.replies())
    assert (first != second).any(axis=1).all()
    _assert_noise((first - second) / 2**0.5, _booked(asking, Against.SERVER))


@pytest.mark.parametrize(
    "overrides",
    [["privacy=client"], ["privacy=example"], ["strategy=fedavg", *OPEN]],
    ids=["client", "example", "fedavg"],
)
def test_nothing_but_the_vector_travels(make_exchange: MakeExchange, overrides: list[str]) -> None:
    exchange = make_exchange(*overrides)
    length = exchange.strategy.noise.dim
    for reply in exchange.replies():
        content: RecordDict = reply.content
        assert set(content) == {"update"}
        assert set(content["update"]) == {"type", "sum"}
        record = content.config_records["update"]
        assert (record["type"], len(record["sum"])) == ("<f4", 4 * length)  # type: ignore[arg-type]


def test_a_node_introduces_itself_by_its_part_of_the_data() -> None:
    question = Message(RecordDict(), 4, "query.introduce")
    (reply,) = LocalGrid(app, 5).send_and_receive([question])
    assert reply.content.config_records["self"]["client"] == 2


def test_a_tampered_configuration_is_an_error_reply(make_exchange: MakeExchange) -> None:
    exchange = make_exchange()
    messages = exchange.ask()
    head = messages[0].content.config_records["head"]
    head["config"] = str(head["config"]).replace('"clip":0.4', '"clip":-0.4')
    replies = list(exchange.grid.send_and_receive(messages[:1]))
    assert "privacy.clip" in replies[0].error.reason


def test_protocol_messages_cost_no_import_of_torch() -> None:
    script = (
        "import sys, fedsketch.client.app, fedsketch.conf, fedsketch.secagg\n"
        "print([m for m in ('torch', 'sklearn', 'torchvision', 'ray') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert done.stdout.strip() == "[]"
