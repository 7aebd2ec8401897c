"""The compose files promise to confine every service and to keep secrets in files; `compose.sh` checks that they also
work."""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsketch.server.roster import ROSTER_VARIABLE
from fedsketch.tasks.models.features import CACHE_VARIABLE

ROOT = Path(__file__).parents[2]
FILES = ("docker-compose.yml", "docker-compose.device.yml")
ONCE = {"certs", "register", "fedsketch", "enroll"}


def services(file: str) -> dict[str, dict[str, Any]]:
    return yaml.safe_load((ROOT / file).read_text())["services"]


EVERY = [pytest.param(file, name, id=f"{file}:{name}") for file in FILES for name in services(file)]


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_a_service_can_do_nothing_that_it_need_not(file: str, name: str) -> None:
    service = services(file)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & set(service)
    assert "network_mode" not in service or service["network_mode"] == "none"


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_what_shall_last_is_watched_and_started_again(file: str, name: str) -> None:
    service = services(file)[name]
    if name in ONCE:
        assert service["restart"] == "no"
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_no_secret_is_an_environment_variable(file: str, name: str) -> None:
    named = set(services(file)[name].get("environment", {}))
    ours = {"NODES", "SERVER_NAMES", "SUPERLINK", "FEDSKETCH_DEVICE", "FEDSKETCH_DATA", "DEMO_DATA"}
    assert named <= ours | {ROSTER_VARIABLE, CACHE_VARIABLE, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"}


def test_the_serverapp_reads_the_roster_where_register_writes_it() -> None:
    compose, script = services("docker-compose.yml"), (ROOT / "docker" / "register.sh").read_text()
    assert compose["serverapp"]["environment"][ROSTER_VARIABLE] == "/trust/roster.json"
    assert "trust:/trust:ro" in compose["serverapp"]["volumes"]
    assert "trust:/trust" in compose["register"]["volumes"]
    assert "cp /certs/ca.crt /certs/roster.json /trust/" in script


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    """Volume by its name: `ro` or `rw`."""
    parts = [re.sub(r"\$\{[^}]*\}", "HOST", volume).split(":") for volume in service["volumes"]]
    return {part[0]: part[2] if len(part) > 2 else "rw" for part in parts}


def test_each_secret_is_mounted_by_those_who_need_it_alone() -> None:
    found = {name: _mounts(service) for name, service in services("docker-compose.yml").items()}
    holders = {
        volume: {name: mounts[volume] for name, mounts in found.items() if volume in mounts}
        for volume in ("authority", "server", "nodes", "superexec")
    }
    assert holders == {
        "authority": {"certs": "rw", "register": "rw"},
        "server": {"certs": "rw", "superlink": "ro", "gate": "ro"},
        "nodes": {"certs": "rw", "register": "rw", "supernode": "rw"},
        "superexec": {"certs": "rw", "superlink": "ro", "serverapp": "ro"},
    }


def test_devices_reach_the_gate_and_nothing_else() -> None:
    found = services("docker-compose.yml")
    reached = {name: service.get("networks", []) for name, service in found.items()}
    assert [name for name, networks in reached.items() if "fleet" in networks] == [
        "gate",
        "supernode",
    ]
    assert reached["supernode"] == ["fleet"]
    assert [name for name, service in found.items() if "ports" in service] == ["gate"]
    networks = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
    assert networks["inside"] == {"internal": True}


def test_encryption_and_authentication_are_the_default() -> None:
    found = services("docker-compose.yml")
    link = found["superlink"]["command"]
    assert {"--enable-supernode-auth", "--ssl-keyfile=/server/server.key"} <= set(link)
    assert (
        "--isolation=process" in link
    )  # with it, and only with it, the Runtime API asks for the secret
    assert "--superexec-auth-secret-file=/superexec/secret" in link
    commands = [*link, *found["gate"]["command"], *found["serverapp"]["command"]]
    assert not [word for word in commands if "insecure" in word]
    assert "INSECURE" not in found["supernode"]["environment"]
    device = services("docker-compose.device.yml")["supernode"]
    assert "--auth-supernode-private-key=/node/auth.key" in device["command"]
    assert "--insecure" not in device["command"]


def test_a_device_can_write_its_ledger_and_neither_its_data_nor_its_node_key() -> None:
    volumes = services("docker-compose.device.yml")["supernode"]["volumes"]
    writable = [volume for volume in volumes if not volume.endswith(":ro")]
    assert writable == ["${DEVICE:-./device}/device:/node/device"]


@pytest.mark.parametrize("name", ["certs/ca.key", "device/auth.key", ".env", "data/a.png", ".git"])
def test_nothing_secret_can_get_into_an_image(name: str) -> None:
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    assert "*" in rules
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    assert not [
        rule for rule in let_in if fnmatch.fnmatch(name, rule) or name.startswith(f"{rule}/")
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout, not an archive")
@pytest.mark.parametrize(
    "name",
    ["certs/ca.key", "device/auth.key", ".env", "docker/wheels/t.whl", "docker/plugins/mine/a.py"],
)
def test_nothing_secret_or_large_can_get_into_git(name: str) -> None:
    subprocess.run(["git", "check-ignore", "--quiet", "--no-index", name], cwd=ROOT, check=True)


def test_the_image_has_everything_that_the_services_call() -> None:
    let_in = (ROOT / ".dockerignore").read_text().split("\n")
    assert "!docker" in let_in
    for file in FILES:
        for name in re.findall(r"/app/(docker/[\w.]+)", (ROOT / file).read_text()):
            assert (ROOT / name).is_file(), name


def test_the_image_has_a_file_for_everything_that_the_bundle_excludes() -> None:
    """Flower refuses a pattern of `fab-exclude` that matches nothing, and a bundle is made in the image."""
    let_in = [
        rule[1:] for rule in (ROOT / ".dockerignore").read_text().split("\n") if rule[:1] == "!"
    ]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in pyproject["tool"]["flwr"]["app"]["fab-exclude"]:
        assert [rule for rule in let_in if fnmatch.fnmatch(rule, pattern)], pattern


@pytest.mark.slow
def test_three_nodes_train_over_tls_in_containers() -> None:
    """The script says why it is skipped where there is no engine."""
    done = subprocess.run(
        ["bash", ROOT / "tests/system/compose.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    if last.startswith("skipped:"):
        pytest.skip(last)
    assert last == "ok"


def test_features_outlive_a_container() -> None:
    """The folder of the user is in memory and goes with the container; features take minutes."""
    kept = {
        "docker-compose.device.yml": ("supernode", "/node/device"),
        "docker-compose.yml": ("serverapp", "/runs"),
    }
    for file, (name, place) in kept.items():
        service = services(file)[name]
        assert service["environment"][CACHE_VARIABLE].startswith(f"{place}/")
        assert any(volume.split(":")[-1] == place for volume in service["volumes"])
    script = (ROOT / "docker" / "supernode.sh").read_text()
    assert f'export {CACHE_VARIABLE}="$node/' in script
