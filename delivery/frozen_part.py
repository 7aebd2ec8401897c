"""The part of a model that is not trained: how devices get the same one as the server.

It follows from the seed, unless the server starts from given weights (`model.weights`). All devices of a round are told
its fingerprint, to which secure aggregation commits. A device that computes it from the seed, or has it from an earlier
message, is sent nothing. Any other device says so before anything is trained, is sent the frozen part once, and keeps
it in its folder. So frozen weights are sent at most once to each device, and a round costs no more than its trained
part.

A device does not check the values. They are a map of one example that the server chooses, like the model. Whatever they
are, what leaves the device is clipped and noised. The owner bounds the size: `largest_model` counts frozen parameters
too.

A feature map in front of the model is frozen too, and comes with a package that owners install. All devices are told
its edition. A device with another edition refuses, because a model cannot learn behind two different maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsketch.delivery.kept_file import keep
from fedsketch.delivery.records import FEATURES, FROZEN, FROZEN_ARRAYS, STALE
from fedsketch.delivery.tensor_records import opened
from fedsketch.errors import ModelError, UnsafeUpdateError
from fedsketch.secagg import Refusal
from fedsketch.sketching.sketch import digest
from fedsketch.tasks.models.flat_model import FlatModel

FILE = "frozen.safetensors"


class FrozenPart:
    """The frozen part of one model. Another one is loaded into the model only through this class."""

    version = 0  # the frozen part never changes in a run

    def __init__(self, model: FlatModel, features: str | None = None) -> None:
        """`features` is the edition of a feature map in front of the model, if it comes from an installed package."""
        self.model = model
        self.features = features
        self.fingerprint = _fingerprint(model.frozen)

    # ------------------------------------------------------------------ on the server
    def head(self) -> dict[str, int | str | bool | float | bytes]:
        """Return what every device is told, in the common part of the broadcast; nothing if everything is trained."""
        scalars: dict[str, int | str | bool | float | bytes] = {}
        if self.sent:
            scalars[FROZEN] = self.fingerprint
        if self.features is not None:
            scalars[FEATURES] = self.features
        return scalars

    @property
    def sent(self) -> bool:
        """Whether a device may have to be sent anything."""
        return bool(self.model.frozen)

    def parcel(self, version: int) -> RecordDict:
        """Return the parcel for a device that has not asked."""
        return RecordDict()

    def whole(self) -> RecordDict:
        """Return the parcel for a device that has asked."""
        arrays = {name: Array(tensor.cpu().numpy()) for name, tensor in self.model.frozen.items()}
        return RecordDict({FROZEN_ARRAYS: ArrayRecord(arrays)})

    def refuse_another(self, fingerprint: str) -> None:
        """Raise ModelError unless this is the frozen part with which a run began."""
        if self.fingerprint != fingerprint:
            raise ModelError(
                "The frozen part of the model is not the one with which the run began: restore the file of "
                "model.weights."
            )

    # ------------------------------------------------------------------ on a device
    def receive(
        self, parcel: RecordDict, scalars: Mapping[str, object], folder: Path | None
    ) -> bool:
        """Bring the model's frozen part to the one that all devices were told of; returns whether that was possible.
        Raises `Refusal` if the feature map is another one, because only its owner can change that."""
        if scalars.get(FEATURES) != self.features:
            raise Refusal(
                "The feature map that is installed here is not the server's: install the same version of its package "
                "on both."
            )
        goal = scalars.get(FROZEN, self.fingerprint)
        if self.fingerprint == goal:
            return True
        if FROZEN_ARRAYS not in parcel:
            return folder is not None and self._kept(goal, folder)
        self._load(opened(parcel, FROZEN_ARRAYS))
        if self.fingerprint != goal:
            raise UnsafeUpdateError(
                "the frozen part that came is not the one that all devices were told."
            )
        if folder is not None:
            keep(self.model.frozen, folder / FILE)
        return True

    def _kept(self, goal: object, folder: Path) -> bool:
        """Load the frozen part in the device's folder; returns whether it is the right one."""
        try:
            self._load(load_file(folder / FILE))
        except (OSError, SafetensorError, ModelError):
            return False  # there is none yet, or it belongs to another model
        return self.fingerprint == goal

    def _load(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_frozen(tensors)
        self.fingerprint = _fingerprint(self.model.frozen)


def asks_for_the_frozen_part() -> RecordDict:
    """Return the answer of a device that has another frozen part, or none."""
    return RecordDict({FROZEN: ConfigRecord({STALE: "the frozen part is not here"})})


def _fingerprint(tensors: dict[str, Tensor]) -> str:
    return digest(part for name in sorted(tensors) for part in (name, tensors[name]))
