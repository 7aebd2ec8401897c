"""The packages in examples/, installed by pip: one command runs each, in every runtime."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributions import Poisson

from fedsketch.client.enroll import main as enroll
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.configuration import admitted
from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.runtime.processes import fitting_policy
from fedsketch.secagg import Refusal
from fedsketch.server.plan import make_plan
from fedsketch.tasks.built_in import make_task
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]
EXAMPLES = ("own_task", "own_strategy")
# The files of which docs/how-to/extend.md has the blocks, in the order of the page.
ON_THE_PAGE = {
    "thin/conf/strategy/thin.yaml": "yaml",
    "thin/conf/strategy/thin.py": "python",
    "thin/strategy.py": "python",
    "pyproject.toml": "toml",
}
SEEDED = ["device=cpu", "privacy.randomness=seeded"]
Play = Callable[..., int]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that a reader of docs/how-to/extend.md writes."""
    folder = tmp_path_factory.mktemp("page") / "written"
    page = ROOT / "docs" / "how-to" / "extend.md"
    for name, block in zip(ON_THE_PAGE.items(), blocks(page)[1:5], strict=True):
        assert block.language == name[1], block.where
        (folder / name[0]).parent.mkdir(parents=True, exist_ok=True)
        (folder / name[0]).write_text(block.text)
    return folder


@pytest.fixture(scope="module")
def site(pip_install: Callable[..., Path], written: Path) -> Path:
    """Where pip put both, and the package of the page."""
    return pip_install(*(f"examples/{name}" for name in EXAMPLES), str(written))


@pytest.fixture
def installed(site: Path, found_here: Callable[[Path], None]) -> None:
    found_here(site)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_as_short_as_its_page_says(name: str) -> None:
    files = [path for path in (ROOT / "examples" / name).rglob("*") if path.is_file()]
    text = [p for p in files if p.suffix in (".py", ".yaml", ".toml") and "build" not in p.parts]
    assert sum(len(path.read_text().splitlines()) for path in text) <= 150
    assert len((ROOT / "examples" / name / "README.md").read_text().splitlines()) <= 40


@pytest.mark.usefixtures("installed")
def test_the_task_learns_from_its_table(play: Play, tmp_path: Path) -> None:
    """At epsilon 2 per patient; who guesses the mean of all has a deviance of 2.2."""
    play("run", "experiment=own_task", "rounds=10", *SEEDED)
    rows = _rows(tmp_path / "run")
    assert rows[0]["deviance"] > rows[-1]["deviance"]
    assert rows[-1]["deviance"] < 1.7
    assert 0.5 < rows[-1]["within_one"] < 1
    assert rows[-1]["epsilon"]["model"] <= 2
    assert "accuracy" not in rows[-1]


@pytest.mark.usefixtures("installed")
def test_the_loss_is_that_of_poissons_law_and_its_metrics_are_bounded() -> None:
    task = make_task(compose(["experiment=own_task"]).task)
    outputs, targets = torch.tensor([[-1.0], [0.5], [99.0]]), torch.tensor([0.0, 3.0, 20.0])
    guessed, known = torch.tensor([-1.0, 0.5]).exp(), targets[:2]
    # Against a law whose mean is the number itself: no guess is likelier, so no loss is below 0.
    better = Poisson(known).log_prob(known) - Poisson(guessed).log_prob(known)
    assert torch.allclose(task.losses(outputs, targets)[:2], better)
    found = task.metrics(outputs, targets)
    assert task.metrics(targets.log()[1:, None], targets[1:])["deviance"] == pytest.approx(
        0, abs=1e-5
    )
    assert found["deviance"] > 0
    assert found["within_one"] == pytest.approx(2 / 3)  # 0.4 and 0, 1.6 and 3, 20 and 20


@pytest.mark.usefixtures("installed")
def test_the_strategy_goes_on_after_a_stop_as_if_there_had_been_none(
    play: Play, tmp_path: Path
) -> None:
    run = ["experiment=own_strategy", "rounds=4", *SEEDED]
    play("whole", *run)
    play("parts", *run, stop_after=2)
    assert play("parts", *run) == 2
    models = [
        safetensors.torch.load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parts")
    ]
    for name, tensor in models[0].items():
        assert torch.equal(models[1][name], tensor), name
    rates = [row["rate"] for row in _rows(tmp_path / "parts")]
    assert rates == pytest.approx([0.03875, 0.0275, 0.01625, 0.005])


@pytest.mark.usefixtures("installed")
def test_the_strategy_costs_what_dp_fedavg_costs_and_refuses_what_it_does_not_do() -> None:
    own, usual = (
        make_plan(compose(["experiment=own_strategy", f"strategy={name}"]))
        for name in ("signum", "dp_fedavg")
    )
    assert own.epsilon == usual.epsilon
    assert own.noise_multiplier == usual.noise_multiplier
    assert own.mechanism == usual.mechanism
    with pytest.raises(ConfigError, match=r"leave strategy\.server\.optimizer=sgd"):
        compose(["strategy=signum", "strategy.server.optimizer=adam"])


THIN = ["strategy=thin", "clients.total=6", "clients.per_round=6", *SEEDED]


@pytest.mark.usefixtures("installed")
def test_the_strategy_of_the_page_learns_and_resumes(play: Play, tmp_path: Path) -> None:
    """Six clients at a budget at which the noise is small."""
    run = [*THIN, "rounds=30", "privacy.epsilon=1000"]
    play("whole", *run)
    assert _rows(tmp_path / "whole")[-1]["accuracy"] > 0.6
    play("parts", *run, stop_after=20)
    assert play("parts", *run) == 20
    assert _rows(tmp_path / "whole")[-1]["loss"] == _rows(tmp_path / "parts")[-1]["loss"]


@pytest.mark.usefixtures("installed")
def test_the_strategy_of_the_page_sends_a_fifth_for_the_epsilon_of_dp_fedavg() -> None:
    own, usual = (make_plan(compose([*THIN, f"strategy={name}"])) for name in ("thin", "dp_fedavg"))
    # Calibrated noise of k and of d numbers differs in the last digits of epsilon.
    assert own.epsilon == pytest.approx(usual.epsilon, rel=1e-6)
    assert own.upload_size == usual.upload_size // 5


@pytest.mark.usefixtures("installed")
def test_a_device_describes_the_table_by_its_name_and_plays_what_its_owner_allows(
    tmp_path: Path,
) -> None:
    assert enroll([str(tmp_path / "device"), "--data", "visits"]) == 0
    card = DataCard.load(tmp_path / "device" / "data.toml")
    assert card == DataCard("visits", (3,), ("0",), 1024, "numbers")
    config = compose(["experiment=own_task", "data.root=/etc/passwd"])
    policy = fitting_policy(config)
    assert policy.plugins == "visits"
    assert admitted(config, policy, card).config.data.root is None
    with pytest.raises(Refusal, match="does not allow the task of an installed package"):
        admitted(config, replace(policy, plugins=""), card)


BOTH = ["experiment=own_task", "strategy=signum", "rounds=2", *SEEDED]


@pytest.mark.slow
def test_both_run_under_ray_with_the_result_of_the_local_runtime(
    play: Play, installed: None, site: Path, call_with: Callable[..., str], tmp_path: Path
) -> None:
    play("local", *BOTH)
    call_with(site, *BOTH, "runtime=simulation", "hydra.run.dir=simulation")
    models = [
        safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        for name in ("local", "simulation")
    ]
    same = [(models[1][name] - tensor).abs().flatten() < 1e-4 for name, tensor in models[0].items()]
    # A sum that is 0 but for its last bit may have either sign. Runs with other data or noise agree in half of the
    # signs.
    assert torch.cat(same).float().mean() > 0.95


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_on_processes_with_policies_and_ledgers(
    site: Path, call_with: Callable[..., str], tmp_path: Path, name: str
) -> None:
    run = [f"experiment={name}", "rounds=2", "secagg.stage_timeout=300", "clients.timeout=1200"]
    call_with(site, *run, "runtime=processes", "hydra.run.dir=run")
    policy = (tmp_path / "run" / "processes" / "policy.toml").read_text()
    assert f'plugins = "{"visits" if name == "own_task" else "signum"}"' in policy
    assert len(_rows(tmp_path / "run")) == 2
    ledgers = list((tmp_path / "run" / "processes").glob("nodes/*/device/ledger.jsonl"))
    assert [file.read_text().count('"charged"') for file in ledgers] == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_in_containers(name: str) -> None:
    """The script says why it is skipped where there is no engine."""
    script = ["bash", str(ROOT / "tests/system/compose_example.sh"), name]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    if last.startswith("skipped:"):
        pytest.skip(last)
    assert last == "ok"
