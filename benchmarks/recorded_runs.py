"""Seeded runs of every strategy in every runtime, recorded before a change and compared after it.

    python benchmarks/recorded_runs.py record before.json            # on the code before the change
    python benchmarks/recorded_runs.py compare before.json           # on the code after it

A change of structure must leave the models bit-equal, the epsilons equal, and the bytes equal or fewer. Bits are
compared on one machine only: another processor rounds differently. Each run is a process of its own, with one thread.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMMON = ["device=cpu", "seed=7", "rounds=3", "privacy.randomness=seeded", "clients.timeout=300"]
FEW = ["clients.total=6", "clients.per_round=6"]
SAMPLED = ["clients.total=12", "clients.per_round=6", "privacy.against=model"]
PUBLIC = ["data.public=100"]
RUNS: dict[str, list[str]] = {
    "fedavg": ["strategy=fedavg", "secagg=none", *FEW],
    "fedavg under masks": ["strategy=fedavg", "privacy.clip=100", *FEW],
    "dp_fedavg": ["strategy=dp_fedavg", *FEW],
    "dp_fedavg, gaussian": ["strategy=dp_fedavg", "secagg=none", *FEW],
    "dp_fedavg, integers without masks": [
        "strategy=dp_fedavg",
        "secagg=none",
        "secagg.noise=skellam",
        *FEW,
    ],
    "dp_fedavg, examples": ["strategy=dp_fedavg", "privacy=example", *FEW],
    "dp_fedavg, 20 bits, merged": [
        "strategy=dp_fedavg",
        "secagg.bits=20",
        "secagg.merged=true",
        *FEW,
    ],
    "dp_fedavg, semi-honest, dropouts": [
        *("strategy=dp_fedavg", "secagg=semi_honest", "clients.tolerated_dropouts=0.2", *FEW),
    ],
    "dp_fedavg, poisson, gaussian": [
        *("strategy=dp_fedavg", "secagg=none", "clients.sampling=poisson", *SAMPLED),
    ],
    "dp_fedavg, poisson": ["strategy=dp_fedavg", "clients.sampling=poisson", *SAMPLED],
    "dp_fedavg, passes": ["strategy=dp_fedavg", "clients.sampling=passes", *SAMPLED],
    "dp_fedavg, the paper's noise": ["strategy=dp_fedavg", "privacy.accounting=paper", *FEW],
    "dp_fedavg, given noise": [
        *("strategy=dp_fedavg", "privacy.epsilon=null", "privacy.noise_multiplier=1", *FEW),
    ],
    "dome": ["strategy=dome", *FEW],
    "dome, full broadcast": ["strategy=dome", "strategy.broadcast=full", *FEW],
    "dome, flat": ["strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=64", *FEW],
    "dome, paper": [
        *(
            "strategy=dome",
            "strategy.sketch=flat",
            "strategy.sketch_dim=64",
            "strategy.variant=paper",
            *FEW,
        ),
    ],
    "dome, warm-up, all kept": ["strategy=dome", "strategy.warm_up=1", "strategy.keep=all", *FEW],
    "dome, error feedback": ["strategy=dome", "strategy.error_feedback=0.5", *FEW],
    "dome, mean removal": [
        *("strategy=dome", "strategy.mean_removal=0.9", "strategy.feed=gradient", *FEW),
    ],
    "dome, examples": ["strategy=dome", "privacy=example", *FEW],
    "fed_sgm": ["strategy=fed_sgm", *FEW],
    "fed_sgm, hadamard, clip before": [
        *("strategy=fed_sgm", "strategy.sketch=hadamard", "strategy.clip=before", *FEW),
    ],
    "fed_sgm, count sketch, amsgrad": [
        *(
            "strategy=fed_sgm",
            "strategy.sketch=count_sketch",
            "strategy.server.optimizer=amsgrad",
            *FEW,
        ),
    ],
    "fed_sgm, r_secret": [
        *(
            "strategy=fed_sgm",
            "strategy.accounting=r_secret",
            "strategy.clip=before",
            "secagg=none",
            *FEW,
            "rounds=1",
        ),
    ],
    "fedpcdp": ["strategy=fedpcdp", *PUBLIC, *FEW],
    "fedpcdp, after the clip, without masks": [
        *("strategy=fedpcdp", "strategy.projection=after", "secagg=none", *PUBLIC, *FEW),
    ],
    "fedpcdp, no projection, the paper's noise": [
        *("strategy=fedpcdp", "strategy.projection=none", "privacy.accounting=paper", *FEW),
    ],
    "fedceo": ["strategy=fedceo", "strategy.every=2", *FEW],
    "fedceo, groups": [
        *("strategy=fedceo", "strategy.every=2", "strategy.start=slots", "strategy.groups=2", *FEW),
    ],
    "fedceo, slots without masks": [
        *("strategy=fedceo", "strategy.every=2", "strategy.start=slots", "secagg=none", *FEW),
    ],
    "csgm": ["strategy=csgm", *FEW],
    "csgm, common mask": ["strategy=csgm", "strategy.mask=common", "secagg=pairwise", *FEW],
    "sgmf": ["strategy=sgmf", "clients.total=6", "clients.per_round=3", "clients.sampling=passes"],
    "sgmf, one band for all rounds": [
        *("strategy=sgmf", "strategy.restarts=false", "strategy.factorisation=banded"),
        *("strategy.rate=0.5", "clients.total=6", "clients.per_round=3", "clients.sampling=cycle"),
    ],
    "fed_sgm, poisson": ["strategy=fed_sgm", "clients.sampling=poisson", *SAMPLED],
}
RUNS |= {
    "csgm, common mask": [
        *("strategy=csgm", "strategy.mask=common", "privacy=client", "secagg=pairwise", *FEW),
    ],
    "dome, blocks of a transformer": [
        *("strategy=dome", "strategy.sketch=blocks", "model=transformer", "model.patch=4"),
        *("model.depth=1", *FEW),
    ],
    "dome, public directions": ["strategy=dome", "strategy.directions=public", *PUBLIC, *FEW],
    "dome, public directions, examples": [
        *("strategy=dome", "strategy.directions=public", "privacy=example", *PUBLIC, *FEW),
    ],
    "fed_sgm, examples": [
        *("strategy=fed_sgm", "privacy=example", "strategy.local.steps=1"),
        *("strategy.local.epochs=null", "strategy.local.batch=0", *FEW),
    ],
    "dp_fedavg, adaptive clip": ["strategy=dp_fedavg", "privacy.clip=adaptive", *FEW],
    "dp_fedavg, adapters": ["strategy=dp_fedavg", "model.lora_rank=2", *FEW],
    "dp_fedavg, epochs of a cnn": [
        *("strategy=dp_fedavg", "model=cnn", "strategy.local.epochs=1", "strategy.local.batch=8"),
        *FEW,
    ],
    "dome, evaluation on devices": [
        *("strategy=dome", "evaluation=federated", "evaluation.held_out=0.2", *FEW),
    ],
}
# Devices that follow by replay make the server compute in float64. With the full broadcast it computes in float32.
for followed in [name for name in RUNS if name.startswith(("fed_sgm", "fedpcdp", "csgm, common"))]:
    RUNS[f"{followed}, replay"] = RUNS[followed]
    RUNS[followed] = [*RUNS[followed], "strategy.broadcast=full"]
COHORT = {
    f"{name}, cohort, noise {noise}": [*overrides, "runtime=cohort", f"runtime.noise={noise}"]
    for name, overrides in RUNS.items()
    for noise in ("per_device", "per_sum")
}
# Played by Ray and by real nodes too.
ELSEWHERE = ("fedavg", "dp_fedavg", "dome", "fed_sgm", "fedpcdp", "fedceo", "csgm")
PROCESSES = {
    f"{name}, {runtime}": [
        *(*RUNS[name], f"runtime={runtime}", "rounds=2", "clients.total=3", "clients.per_round=3"),
    ]
    for name in ELSEWHERE
    for runtime in ("simulation", "processes")
}
RUNS |= COHORT | PROCESSES
# Secure aggregation divides these cohorts by the keys of the round, which are new in every run, and so is the model.
DRAWN_ANEW = {"fedceo, groups"}


def play(name: str, command: list[str]) -> dict[str, Any]:
    """Execute a run; returns those of its results that must not change."""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [*command, *COMMON, *RUNS[name], "hydra.run.dir=run"],
            cwd=place,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"failed": (done.stderr or done.stdout)[-2000:]}
        folder = Path(place) / "run"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return {
            "model": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
            "noise_multiplier": json.loads((folder / "summary.json").read_text())[
                "noise_multiplier"
            ],
            "epsilon": [row["epsilon"] for row in rows],
            "up": [row["uplink_bytes"] for row in rows],
            "down": [row["downlink_bytes"] for row in rows],
        }


def differences(name: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the results in which a run got worse."""
    if "failed" in now:
        return [f"failed: {now['failed']}"]
    exact = (
        ("noise_multiplier", "epsilon")
        if name in DRAWN_ANEW
        else ("model", "noise_multiplier", "epsilon")
    )
    different = [key for key in exact if before[key] != now[key]]
    # Ids of nodes and messages are drawn anew in every process, and are a few bytes longer or shorter.
    for key in ("up", "down"):
        pairs = zip(before[key], now[key], strict=True)
        if any(after > 1.002 * earlier + 16 for earlier, after in pairs):
            different.append(f"bytes {key}: {before[key]} -> {now[key]}")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose name holds this text")
    parser.add_argument(
        "--command", nargs="+", default=[str(Path(sys.executable).parent / "fedsketch")]
    )
    asked = parser.parse_args()
    names = [name for name in RUNS if asked.only in name]
    with ThreadPoolExecutor(2) as two:
        played = dict(
            zip(names, two.map(lambda name: play(name, asked.command), names), strict=True)
        )
    if asked.action == "record":
        asked.file.write_text(json.dumps(played, indent=1) + "\n")
    known = json.loads(asked.file.read_text())
    wrong = 0
    for name in names:
        if name not in known:
            print(f"{name:40} new", flush=True)
            continue
        found = (
            differences(name, known[name], played[name])
            if "failed" not in known[name]
            else ["failed before"]
        )
        wrong += bool(found)
        fewer = [
            f"{key} {known[name][key][-1]:.0f} -> {played[name][key][-1]:.0f} bytes"
            for key in ("up", "down")
            if not found
        ]
        print(f"{name:40} {'; '.join(found) or 'equal; ' + ', '.join(fewer)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
