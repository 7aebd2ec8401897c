"""`fedsketch-node`: Flower's SuperNode with the installed app (see programs.py), ended when it has given its server up, so that whoever
started it can start it again.

A SuperNode waits for a SuperLink that is away. Other troubles, an expired certificate for one, it logs and then lives on without ever
connecting again, because the thread of its local API keeps the process alive.
"""

import os
import sys
from typing import NoReturn

from fedsketch.client.programs import ForeignCode, run_supernode


def main() -> NoReturn:
    """The console script: all arguments are flower-supernode's."""
    told = "the server was given up; see above, and start again."
    try:
        run_supernode()
    except ForeignCode as error:
        told = str(error)
    print(f"fedsketch-node: {told}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)  # not sys.exit, which would wait for that thread
