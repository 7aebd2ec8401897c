"""A node that has given its server up ends, though a thread of it is still alive."""

import subprocess
import sys

GIVES_UP = """
import sys, threading
import fedsketch.client.node as node, fedsketch.client.programs as programs

class Program:
    def load(self):
        return lambda: threading.Thread(target=threading.Event().wait).start()

programs.entry_points = lambda **asked: (Program(),) if asked["name"] == "flower-supernode" else ()
node.main()
"""


def test_it_ends_with_one_sentence_and_an_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIVES_UP], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "fedsketch-node: the server was given up; see above, and start again.\n"


def test_what_it_writes_is_readable_by_its_user_only() -> None:
    """Files of Flower's, and all that its other programs write, which inherit this."""
    asked = GIVES_UP.replace(
        "threading.Thread(", "print(oct(__import__('os').umask(0))) or threading.Thread("
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.umask(0)\n{asked}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0o77\n"


def test_flowers_program_is_there_and_takes_the_arguments() -> None:
    asked = "import sys; sys.argv = ['fedsketch-node', '--help']; import fedsketch.client.node as node; node.main()"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "--auth-supernode-private-key" in done.stdout
