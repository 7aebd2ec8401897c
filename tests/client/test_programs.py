"""A node runs the installed app or nothing. tests/system/test_hostile_bundle.py attacks it on real processes."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType

from fedsketch.client import programs
from fedsketch.runtime.processes import _free_port

ROOT = Path(__file__).parents[2]
STARTS = """
import sys
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from fedsketch.client import programs

class Started:
    def __init__(self, command, stdin):
        print(*command[1:])
        self.stdin = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        print("its input:", self.written.decode())

    def write(self, content):
        self.written = content

def launch(program):
    for kind in TaskType:
        SubprocessExecutor().launch(ExecutionSpec(task_type=kind, runtime_api_address="a:1", token="t", insecure=True,
            root_certificates_path=None, runtime_dependency_install=False, parent_pid=1, suppress_output=False,
            task_id=1, fab_hash=None))

programs._run = launch
programs.subprocess.Popen = Started
programs.run_superexec()
"""
ASKS_THE_LOCAL_API = """
import os, sys
from importlib import import_module
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.nodestate import NodeStateFactory
from fedsketch.client import programs

program, port = sys.argv[1:]
node = import_module("flwr.supernode.cli.flower_supernode")
if program == "fedsketch-node":
    programs._run = lambda program: None
    programs.run_supernode()
sys.argv = ["node", "--insecure", "--superlink=127.0.0.1:9", "--port", port]
states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
node._start_supernode_http_api(node._parse_supernode_lifespan_config(), states)
states.state().create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="00")
somebody = RuntimeHttpClient.from_server_address(
    server_address=f"127.0.0.1:{port}", insecure=True, root_certificates=None,
    interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
)
try:
    got = somebody.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
    print("the token of a message" if len(got.token) > 30 else "nothing")
except Exception as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


def _python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, because names inside of Flower are replaced for good."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        input="the secret",
    )


def test_whatever_kind_of_app_a_server_names_the_installed_one_is_started() -> None:
    """The token, with which a message and the node's state can be fetched, is not among the arguments."""
    done = _python(STARTS)
    assert done.returncode == 0, done.stderr
    ours = (
        "-P -m fedsketch.client.programs flwr-clientapp "
        "--runtime-api-address a:1 --insecure --parent-pid 1"
    )
    assert done.stdout.splitlines() == [ours, "its input: t"] * len(TaskType)


@pytest.mark.parametrize(
    ("program", "answer"),
    [("flower-supernode", "the token of a message"), ("fedsketch-node", "401 Unauthorized")],
)
def test_only_our_own_programs_can_ask_the_local_api_for_messages(
    program: str, answer: str
) -> None:
    """Every user of the machine can connect. Flower gives whoever asks first a message, with the node's state."""
    done = _python(ASKS_THE_LOCAL_API, program, str(_free_port()))
    assert answer in done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--isolation", "process"], ["--isol=process"], ["--allow-runtime-dependency-installation"]],
)
def test_arguments_that_let_other_code_in_end_the_node_with_one_sentence(
    arguments: list[str],
) -> None:
    nobody = ["--insecure", "--superlink=127.0.0.1:9", f"--port={_free_port()}"]
    done = _python("from fedsketch.client.node import main; main()", *nobody, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("fedsketch-node: leave `--")


def test_another_release_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "version", lambda package: "1.42.0")
    for start in (programs.run_supernode, programs.run_superexec, programs.run_clientapp):
        with pytest.raises(programs.ForeignCode, match=r"Flower is 1\.42\.0 here"):
            start()


def test_a_name_that_flower_does_not_have_is_refused() -> None:
    with pytest.raises(programs.ForeignCode, match="has no not_there"):
        programs._replace("flwr.app", not_there=None)


def test_the_release_is_the_one_that_the_project_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flwr[simulation]>={programs.RELEASE},=={programs.RELEASE}" in project["dependencies"]
