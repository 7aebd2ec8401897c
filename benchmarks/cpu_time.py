"""CPU seconds of this process and of all processes below it: on cores that others use too, they tell more than the
clock.

Ray's workers are below the process that starts them. What a process did that has ended in between is counted by its
parent, if that waited for it. Reads /proc, so it needs Linux.
"""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/<pid>/stat behind the name of the program, which ends with the last bracket.
_PARENT, _OWN_AND_CHILDREN = 1, slice(11, 15)


def of_all_processes() -> float | None:
    """Return seconds since their start, or None where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    parents, used = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[_PARENT])
        used[int(path.parent.name)] = sum(map(int, fields[_OWN_AND_CHILDREN]))
    return sum(ticks for pid, ticks in used.items() if _is_below(pid, parents)) / _TICKS


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    """Return whether it is this process, or one that this process or one of those started."""
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()
