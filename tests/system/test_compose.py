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
from tests.system.in_image import script

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
    ours |= {"PARTITION", "HTTPS_PROXY", "NO_PROXY"}
    assert named <= ours | {ROSTER_VARIABLE, CACHE_VARIABLE, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"}


def test_the_serverapp_reads_the_roster_where_register_writes_it() -> None:
    compose, shell = services("docker-compose.yml"), (ROOT / "docker" / "register.sh").read_text()
    assert compose["serverapp"]["environment"][ROSTER_VARIABLE] == "/roster/roster.json"
    assert "roster:/roster:ro" in compose["serverapp"]["volumes"]
    assert "roster:/roster" in compose["register"]["volumes"]
    assert "--roster /roster/roster.json" in shell


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    """Volume by its name: `ro` or `rw`."""
    parts = [re.sub(r"\$\{[^}]*\}", "HOST", volume).split(":") for volume in service["volumes"]]
    return {part[0]: part[2] if len(part) > 2 else "rw" for part in parts}


def _holders(services: dict[str, dict[str, Any]], volume: str) -> dict[str, str]:
    mounts = {name: _mounts(service) for name, service in services.items() if "volumes" in service}
    return {name: found[volume] for name, found in mounts.items() if volume in found}


def test_each_secret_is_mounted_by_those_who_need_it_alone() -> None:
    found = services("docker-compose.yml")
    secrets = ("authority", "superlink", "gate", "superexec")
    assert {volume: _holders(found, volume) for volume in secrets} == {
        "authority": {"certs": "rw"},
        "superlink": {"certs": "rw", "superlink": "ro"},
        "gate": {"certs": "rw", "gate": "ro"},
        "superexec": {"certs": "rw", "superlink": "ro", "serverapp": "ro"},
    }
    assert found["certs"]["network_mode"] == "none"  # the only one with the authority's key


@pytest.mark.parametrize("number", range(3))
def test_a_demo_device_has_its_own_folder_and_no_other(number: int) -> None:
    found = services("docker-compose.yml")
    name = f"supernode-{number}"
    assert _holders(found, f"device-{number}") == {"certs": "rw", name: "rw"}
    assert _mounts(found[name]) == {f"device-{number}": "rw", "roster": "ro"}
    assert found[name]["environment"]["PARTITION"] == str(number)


def test_register_has_public_files_and_can_write_ids_and_the_roster() -> None:
    found = services("docker-compose.yml")
    assert _mounts(found["register"]) == {"trust": "ro", "nodes": "rw", "roster": "rw"}
    assert _holders(found, "trust") == {
        **{"certs": "rw", "serverapp": "ro", "register": "ro", "fedsketch": "ro"},
    }
    assert _holders(found, "nodes") == {"certs": "rw", "register": "rw"}
    shell = (ROOT / "docker" / "prepare.sh").read_text()
    copied = re.findall(r'cp ("/certs/nodes.*)', shell)
    assert copied == [
        '"/certs/nodes/$number/auth.key.pub" "/certs/nodes/$number/identity.pub" '
        '"/registry/nodes/$number/"'
    ]


def test_devices_reach_the_gate_and_nothing_else() -> None:
    found = services("docker-compose.yml")
    members = {
        network: [name for name, service in found.items() if network in service.get("networks", [])]
        for network in ("demo", "fleet")
    }
    demo = ["supernode-0", "supernode-1", "supernode-2"]
    assert members == {"demo": ["gate", *demo], "fleet": ["gate"]}
    assert all(found[name]["networks"] == ["demo"] for name in demo)
    assert [name for name, service in found.items() if "ports" in service] == ["gate"]
    networks = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
    assert networks["inside"] == networks["demo"] == {"internal": True}


def test_a_real_device_has_no_way_out_but_a_relay_to_its_server() -> None:
    file = ROOT / "docker-compose.device.yml"
    found, networks = services(file.name), yaml.safe_load(file.read_text())["networks"]
    assert found["supernode"]["networks"] == ["inside"]
    assert networks["inside"]["internal"] is True
    # Without it the machine itself is reached at the network's first address.
    assert networks["inside"]["driver_opts"]["com.docker.network.bridge.inhibit_ipv4"] == "true"
    assert found["enroll"]["network_mode"] == "none"
    relay = found["relay"]
    assert relay["command"] == ["python", "/app/docker/relay.py", "${SUPERLINK}"]
    assert relay["networks"] == ["inside", "outside"]
    assert "volumes" not in relay
    assert (
        found["supernode"]["environment"]["HTTPS_PROXY"] == f"http://relay:{script('relay').PORT}"
    )
    assert not [name for name, service in found.items() if "ports" in service]


@pytest.mark.slow
def test_a_real_device_reaches_its_server_and_nothing_else() -> None:
    _run("device_network.sh")


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
    assert "INSECURE" not in found["supernode-0"]["environment"]
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


def _run(name: str) -> None:
    """The script says why it is skipped where there is no engine."""
    done = subprocess.run(
        ["bash", ROOT / "tests/system" / name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    if last.startswith("skipped:"):
        pytest.skip(last)
    assert last == "ok"


@pytest.mark.slow
def test_three_nodes_train_over_tls_in_containers() -> None:
    _run("compose.sh")


def test_the_base_image_and_the_actions_are_pinned_by_what_they_contain() -> None:
    """A tag can be moved to something else."""
    text = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE))
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    (pinned,) = [base for base in bases if base not in {*stages, "scratch", "${PYTHON_IMAGE}"}]
    assert re.fullmatch(r"python:3\.11-slim@sha256:[0-9a-f]{64}", pinned)
    assert "ARG PYTHON_IMAGE=pinned\n" in text
    assert f"FROM {pinned} AS pinned\n" in text
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", file.read_text())
        assert used
        for action in used:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[0-9.]+", action), action


def test_the_image_is_watched_also_without_compose() -> None:
    text, server_in = (ROOT / "Dockerfile").read_text(), script("healthy").server_in
    assert 'CMD ["python", "/app/docker/healthy.py"]' in text
    gate = services("docker-compose.yml")["gate"]["command"]
    superlink = services("docker-compose.yml")["superlink"]["command"]
    init = ["/sbin/docker-init", "--"]
    assert server_in([init, ["python", "/opt/venv/bin/fedsketch-gate", *gate[1:]]]) == [
        *("https://127.0.0.1:8000", "/gate/ca.crt"),
    ]
    assert server_in([["python", "/opt/venv/bin/flower-superlink", *superlink[1:]]]) == [
        *("https://127.0.0.1:8000", "/server/ca.crt"),
    ]
    laptop = ["flower-superlink", "--insecure", "--port", "81"]
    assert server_in([laptop]) == ["http://127.0.0.1:81"]
    assert server_in([["fedsketch-node", "--superlink", "a:1"]]) == ["http://127.0.0.1:9094"]
    assert server_in([["fedsketch", "rounds=1"]]) == []


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
    start = (ROOT / "docker" / "supernode.sh").read_text()
    assert f"export {CACHE_VARIABLE}=/node/" in start
