"""Strategies by name. Each module holds the server's half (SERVER) and the device's half (LOCAL_STEP) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.base import FederatedStrategy, LocalStep


def server_half(name: str) -> "type[FederatedStrategy]":
    return import_module(f"strategies.{name}").SERVER


def local_step(name: str) -> "LocalStep":
    return import_module(f"strategies.{name}").LOCAL_STEP
