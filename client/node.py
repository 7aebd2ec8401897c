"""`fedsketch-node`: Flower's SuperNode with the installed app (see programs.py). It exits when it can no longer reach
its server, so that whatever started it can start it again.

A SuperNode waits for a SuperLink that is down. After other errors, such as an expired certificate, it only logs them
and then stays alive without ever connecting again, because the thread of its local API keeps the process alive.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fedsketch.client.programs import run_supernode
from fedsketch.errors import ForeignCode


def main() -> NoReturn:
    """Run the console script; all arguments are those of flower-supernode."""
    os.umask(0o077)  # whatever this node and its programs write is for their user only
    sentence = "the server was given up; see above, and start again."
    try:
        run_supernode()
    except ForeignCode as error:
        sentence = str(error)
    print(f"fedsketch-node: {sentence}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)  # sys.exit would wait for that thread
