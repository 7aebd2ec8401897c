"""Decides what a device does: by its owner's policy and ledger, or, in a simulation, not at all.

A device is a folder that `fedsketch-enroll` makes, with its private key, the roster of its peers, the policy, the data
card and the ledger. The operator of the node names it in the environment or in the node's own configuration. A message
never does.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.clients import check_clients, check_protocol
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import RoundId
from fedsketch.client.guard.offer import Offer, offer_of
from fedsketch.client.guard.owners_refusal import reason_kept
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.simulation import (
    SEED_VARIABLE,
    SIMULATION_VARIABLE,
    in_simulation_engine,
)
from fedsketch.secagg import (
    Identity,
    PairwiseSettings,
    Refusal,
    Roster,
    RoundSettings,
    SettingsError,
    SimulationGuard,
    TwoTripsSettings,
)

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.tasks.workload import Assignment, Workload

log = getLogger(__name__)

# Names the device's folder; the key "device" of a SuperNode's --node-config takes precedence.
DEVICE_VARIABLE = "FEDSKETCH_DEVICE"

IDENTITY, ROSTER, LEDGER = "identity.key", "roster.json", "ledger.jsonl"
POLICY, CARD = "policy.toml", "data.toml"


def guard_of(context: Context) -> DeviceGuard | SimulatedGuard:
    """Return the guard of the node that handles a message."""
    folder = device_folder(context)
    return SimulatedGuard(context.node_id) if folder is None else DeviceGuard(folder)


def device_folder(context: Context) -> Path | None:
    """Return the folder of the device that handles a message; None in a simulation."""
    if os.environ.get(SIMULATION_VARIABLE):
        return None
    folder = context.node_config.get("device") or os.environ.get(DEVICE_VARIABLE)
    if not folder and in_simulation_engine():
        return None  # a device with a folder is a real one, in every runtime
    if not folder:
        raise Refusal(
            f"This device has no policy yet: make its folder with fedsketch-enroll and name it in {DEVICE_VARIABLE}."
        )
    return Path(str(folder))


class SimulatedGuard(SimulationGuard):
    """No policy, public keys, and uploads without masks are allowed, because there is nobody to protect."""

    folder: Path | None = None

    def admit_configuration(self, config: Config) -> Assignment:
        """Return the run as it is."""
        from fedsketch.tasks.workload import Assignment  # imports torch

        return Assignment(config)

    def admit_workload(self, workload: Workload) -> None:
        """Allow models of any size."""

    def admit_unmasked(self, message_type: str) -> None:
        """Allow a simulated server to ask for plain uploads (secagg=none)."""


class DeviceGuard:
    """The guard of a real device.

    Guarantee, against the server together with up to the assumed colluders of a cohort, for the policy's unit, under
    zero-out adjacency, over the device's life: everything that leaves under masks is (epsilon, delta)-private as the
    policy says, and without `allow_unmasked` nothing else leaves. This holds only if this code is what runs: a node
    that runs code that a server sends is not protected.
    """

    quiet = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / LEDGER, self.policy.witness_file)

    @cached_property
    def identity(self) -> Identity:
        with self._files():
            return Identity.load(self.folder / IDENTITY)

    @cached_property
    def roster(self) -> Roster:
        with self._files():
            return Roster.load(self.folder / ROSTER)

    @cached_property
    def policy(self) -> Policy:
        with self._files():
            return Policy.load(self.folder / POLICY)

    @cached_property
    def card(self) -> DataCard:
        with self._files():
            return DataCard.load(self.folder / CARD)

    def admit(self, settings: RoundSettings) -> None:
        offer = self.judge(settings)
        worst = offer.release(offer.least, self._unit)
        with reason_kept():
            self.ledger.admit(_id(settings), worst, self.policy.budget)

    def charge(self, settings: RoundSettings) -> None:
        # Checked again, because the owner may have changed the policy since the round was admitted.
        offer = self.judge(settings)
        worst = offer.release(offer.least, self._unit)
        with reason_kept():
            self.ledger.charge(_id(settings), worst, self.policy.budget, _key(settings))

    def endorse(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        with reason_kept():
            self.ledger.endorse(_id(settings), _digest(survivors))

    def settle(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        offer = offer_of(settings)
        _check_members(settings, survivors)
        if not offer.least <= len(survivors) <= settings.sizes.most:
            raise Refusal(f"{len(survivors)} survivors are not what the round was charged for.")
        real = offer.release(len(survivors), self._unit)
        with reason_kept():
            self.ledger.settle(_id(settings), _digest(survivors), real, signed=settings.consistency)

    def answer(self, settings: TwoTripsSettings, survivors: tuple[int, ...]) -> None:
        _check_members(settings, survivors)
        if len(survivors) < settings.shape.least:
            raise Refusal(f"{len(survivors)} survivors are not what the round was charged for.")
        with reason_kept():
            self.ledger.answer(_id(settings), _digest(survivors))

    def last_charge(self, run: int) -> bytes | None:
        with reason_kept():
            return bytes.fromhex(self.ledger.state().last_context(run))

    def admit_unmasked(self, message_type: str) -> None:
        if not self.policy.allow_unmasked:
            raise Refusal(
                "This device answers only under secure aggregation: run with secagg="
                f"{' or '.join(self.policy.protocols)} (its owner can set allow_unmasked)."
            )
        with reason_kept():
            self.ledger.note_unmasked(message_type)

    def wait(self, begun: float) -> None:
        """Wait until the next multiple of the policy's `reply_seconds` after `begun`."""
        if not (seconds := self.policy.reply_seconds):
            return
        taken = time.monotonic() - begun
        if taken > seconds:
            log.warning(
                "A reply took %.1f s: raise reply_seconds above that, or the server sees which replies take long.",
                taken,
            )
        time.sleep(seconds * max(1, math.ceil(taken / seconds)) - taken)

    def admit_configuration(self, config: Config) -> Assignment:
        """Return the run in the form that this device accepts; raise `Refusal` for what its owner does not allow. Data
        and model are not touched."""
        from fedsketch.client.guard.configuration import admitted  # imports torch

        return admitted(config, self.policy, self.card)

    def admit_workload(self, workload: Workload) -> None:
        """Refuse a model that is larger than the owner allows."""
        from fedsketch.client.guard.configuration import check_size

        check_size(workload.parameters, self.policy)

    def judge(self, settings: RoundSettings) -> Offer:
        """Return the offer of the round, if the policy allows it."""
        if os.environ.get(SEED_VARIABLE):
            raise Refusal(
                f"{SEED_VARIABLE} is set on this device, so its noise would be no secret: unset it."
            )
        card = self.card  # a device without a card takes no part, and peers should know that before they rely on it
        policy, offer = self.policy, offer_of(settings)
        clip = offer.mechanism.bound
        check_protocol(settings, policy)
        check_clients(settings, policy)
        if clip is None or clip > policy.largest_clip:
            raise Refusal(
                f"The round's clip {'none' if clip is None else f'{clip:g}'} is above the {policy.largest_clip:g} of "
                "this device's owner."
            )
        if offer.mechanism.local_steps > policy.most_local_steps:
            raise Refusal("The round asks for more local steps than this device's owner allows.")
        if settings.dim > policy.largest_model + 1:  # a weight may travel with the update
            raise Refusal("A vector of this round is longer than this device's owner allows.")
        if policy.rings and settings.bits not in policy.rings:
            sizes = ", ".join(map(str, policy.rings))
            raise Refusal(
                f"This device's owner does not allow a ring of {settings.bits} bits: set secagg.bits to one of {sizes}."
            )
        if offer.mechanism.unit is Unit.EXAMPLE and offer.mechanism.rows < card.most_records:
            raise Refusal(
                f"The round has room for {offer.mechanism.rows} examples of a device, and the data card of this one "
                f"says up to {card.most_records}: raise data.largest_shard."
            )
        noise = offer.noise_multiplier(self._unit)
        if noise < policy.smallest_noise:
            raise Refusal(
                f"The noise multiplier of the honest clients is {noise:.4g} per {policy.unit} in the worst case: this "
                f"device's owner asks for {policy.smallest_noise:g}."
            )
        return offer

    @property
    def _unit(self) -> Unit:
        return Unit(self.policy.unit)

    @contextmanager
    def _files(self) -> Iterator[None]:
        """Turn every problem with the folder into a refusal of one sentence. Names and contents of files go to the
        node's log only."""
        try:
            yield
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise Refusal(f"This device has no {name}: make it with fedsketch-enroll.") from error
        except (OSError, SettingsError) as error:
            log.error("%s", error)
            raise Refusal(
                "This device cannot use its own files: the log of its node says why."
            ) from error


def _id(settings: RoundSettings) -> RoundId:
    return RoundId(settings.run, settings.round, settings.digest.hex())


def _key(settings: RoundSettings) -> str | None:
    """Return the hash of the device's key of the epoch; None in a round that has none."""
    if not isinstance(settings, TwoTripsSettings):
        return None
    if not settings.key:
        raise Refusal("A round of two trips needs this device's key of the epoch.")
    return settings.key.hex()


def _check_members(settings: RoundSettings, survivors: tuple[int, ...]) -> None:
    if len(set(survivors)) != len(survivors) or not set(survivors) <= set(settings.cohort):
        raise Refusal("The survivors are not distinct members of the cohort.")


def _digest(survivors: tuple[int, ...]) -> str:
    return hashlib.sha256(",".join(map(str, survivors)).encode()).hexdigest()
