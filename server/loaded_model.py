"""A trained model that is loaded from its run's folder: the network with its weights, and what prepares its inputs.

It needs only the folder, not the data: `model.json`, which a run writes when it begins, describes the data.
"""

from __future__ import annotations

from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from fedsketch.conf import Config
from fedsketch.errors import ConfigError, ModelError
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks.data.columns import inputs_of
from fedsketch.tasks.data.schema import Schema, load_schema
from fedsketch.tasks.data.tables import read_table
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.features import feature_map
from fedsketch.tasks.models.interface import Interface
from fedsketch.tasks.models.trainable_part import all_frozen


class LoadedModel(nn.Module):
    """Takes examples without any preparation, (N, *shape), such as images with pixels from 0 to 1. They are normalised
    as in training, go through the frozen features if there are any, and then through `module`, the trained network.

    `classes` are the names of the outputs, or their numbers if they have no names. A model of tables has a `schema`.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, module: nn.Module, interface: Interface, features: str | None) -> None:
        super().__init__()
        self.module = module
        self.shape = interface.shape
        self.classes = interface.classes
        self.inputs = getattr(torch, interface.inputs)
        self.features = features
        self.schema: Schema | None = None
        per_channel = (1, -1) + (1,) * (len(self.shape) - 1)
        self.normalised = interface.mean != (0.0,) or interface.deviation != (1.0,)
        self.register_buffer("mean", torch.tensor(interface.mean).view(per_channel))
        self.register_buffer("deviation", torch.tensor(interface.deviation).view(per_channel))

    def read(self, table: Path | str) -> Tensor:
        """Return the rows of a .csv file as inputs. It needs the columns that the model was trained on, but not the
        target."""
        if self.schema is None:
            raise ModelError("The model was not trained on a table: give it tensors.")
        return inputs_of(read_table(Path(table), self.schema, targets=False), self.schema)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of the network from (N, *shape): logits of classes, or numbers."""
        if self.normalised:
            inputs = (inputs - self.mean) / self.deviation
        if self.features is not None:
            inputs = feature_map(self.features, self.shape).of(inputs)
        outputs: Tensor = self.module(inputs)
        return outputs


def load(folder: Path, *, best: bool = False) -> LoadedModel:
    """Return the model of a run in evaluation mode, on the CPU: that of the last round, or the best one that a
    validation found.

    Raises `ModelError` if the folder has no such model.
    """
    files = RunFolder(folder)
    path = files.best if best else files.model
    if not path.is_file():
        why = "no validation chose a best model" if best else "the run has not finished"
        raise ModelError(
            f"{folder} has no {path.name}, because {why}: name the folder of a run that has."
        )
    config, interface = _described(files)
    module = networks.build(config.model, interface.network_shape, interface.outputs, config.seed)
    module = all_frozen(module)
    _fill(module, path)
    model = LoadedModel(module, interface, config.model.features).eval()
    if files.schema.is_file():
        model.schema = load_schema(files.schema)
    return model


def _described(files: RunFolder) -> tuple[Config, Interface]:
    try:
        return files.read_config(), files.read_interface()
    except (OSError, yaml.YAMLError, ConfigError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{files.path} does not say what its model is like, because {files.config.name} or {files.interface.name} "
            f"is missing, damaged, or of another version ({error}): take the whole folder of a run."
        ) from error


def _fill(module: nn.Module, path: Path) -> None:
    """Load every parameter and buffer from the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{path} does not hold the weights of the run's model ({' '.join(str(error).split())}): take the whole "
            "folder of a run."
        ) from error
