"""`fedsketch-gate`: the address that devices connect to. It passes on Flower's Fleet API to the SuperLink, and nothing
else.

A SuperLink serves three APIs on one port: Fleet (what SuperNodes call), Control (submit runs, register nodes) and
Runtime (act as the ServerApp). Only the first one authenticates its callers. Whoever reaches the others can send their
own code to every device. So devices connect to this gate, and only the operator can reach the SuperLink itself. Node
authentication still works, because Flower signs requests, not connections.

The gate does not know who a caller is until the SuperLink has checked the signature. So whatever it spends on a request
before that is bounded: connections and memory per address and in total, and the time that a request may take.
"""

from __future__ import annotations

from fedsketch.server.gate.application import gate
from fedsketch.server.gate.command import main
from fedsketch.server.gate.limits import LARGEST_REQUEST, Limits

__all__ = ["LARGEST_REQUEST", "Limits", "gate", "main"]
