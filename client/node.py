"""`fedsketch-node`: Flower's SuperNode, ended when it has given its server up, so that whoever started it can start it again.

A SuperNode waits for a SuperLink that is away. Other troubles, an expired certificate for one, it logs and then lives on without ever
connecting again, because the thread of its local API keeps the process alive.
"""

import os
import sys
from importlib.metadata import entry_points
from typing import NoReturn


def main() -> NoReturn:
    """The console script: all arguments are flower-supernode's."""
    (program,) = entry_points(group="console_scripts", name="flower-supernode")
    program.load()()
    print("fedsketch-node: the server was given up; see above, and start again.", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)  # not sys.exit, which would wait for that thread
