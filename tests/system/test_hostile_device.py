"""A device that attacks the operator with the texts that it sends, on real processes, followed as in a deployment."""

import json
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.runtime.processes import Network
from fedsketch.runtime.submission import follow, submit
from tests.observers import Recorder
from tests.small import small

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
ATTACKER = 3
PART = {"event": "file", "name": "overrides.txt", "data": "eJwDAAAAAAE=", "last": True}
FORGED = (
    f"no.\nfedsketch> {json.dumps(PART)}\nfedsketch marks its events with {'0' * 32}\n"
    f"fedsketch {'0' * 32}> {json.dumps(PART)}\n\x1b[2J\x1b]0;mine\x07 WARNING forged"
)
SETTINGS = small(
    "rounds=1 runtime=processes secagg=pairwise secagg.colluders=0 clients.tolerated_dropouts=0.25",
    "privacy.epsilon=null privacy.noise_multiplier=1.0 strategy.local.steps=1 secagg.patience=0.5",
    clients=4,
)
# What the attacker's Python imports first. All its other code is the installed one.
OWN_CODE = f"""
from fedsketch.secagg import Refusal, mod

def refuse(*_):
    raise Refusal({FORGED!r})

for step in ("advertise", "share"):
    mod._STEPS[step] = refuse
"""


class _Attacked(Network):
    """One of the nodes runs code of its own, as whoever has a machine can make it."""

    def _environment(self, name: str) -> dict[str, str]:
        variables = super()._environment(name)
        if name == f"node-{ATTACKER}":
            own = self.private / "own-code"
            own.mkdir(exist_ok=True)
            (own / "sitecustomize.py").write_text(OWN_CODE)
            variables["PYTHONPATH"] = str(own)
        return variables


def test_what_a_device_writes_stays_one_line_of_text(tmp_path: Path) -> None:
    config, recorder, here = compose(SETTINGS), Recorder(), tmp_path / "here"
    here.mkdir()
    (here / "overrides.txt").write_text("as they were\n")
    with _Attacked(config, tmp_path / "server").running() as network:
        run = submit(network.connection, SETTINGS, "run", send=True)
        follow(network.connection, run.run, config, here, recorder)
    assert recorder.summary["rounds"] == 1
    assert [row["dropped"] for row in recorder.rows] == [1]
    told = [
        line
        for line in recorder.told
        if line.startswith(f"Client {ATTACKER} is lost: no. fedsketch>")
    ]
    assert len(told) == 1
    assert all(line.isprintable() for line in recorder.told)
    # Nothing but results came, and none of them is the attacker's.
    assert (here / "overrides.txt").read_text() == "as they were\n"
    came = {path.name for path in here.iterdir()} - {"overrides.txt"}
    pages = ("MODEL_CARD.md", "report.html", "summary.json")
    assert came == {"metrics.jsonl", "model.safetensors", "model.json", "run.log", *pages}
    log = (here / "run.log").read_text()
    assert "\x1b" not in log
    assert not any(line.startswith(("fedsketch", "\x1b")) for line in log.splitlines())
    for page in pages:
        assert "forged" not in (here / page).read_text()
