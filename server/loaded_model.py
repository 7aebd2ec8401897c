"""A trained model, read from its run's folder: the network with its weights, and what its inputs go through before it.

It needs the folder alone, not the data: `model.json`, which a run writes when it begins, says what the data are like.
"""

from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from fedsketch.conf import Config, ConfigError
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks import models
from fedsketch.tasks.columns import inputs_of
from fedsketch.tasks.errors import ModelError
from fedsketch.tasks.features import feature_map
from fedsketch.tasks.interface import Interface
from fedsketch.tasks.schema import Schema, load_schema
from fedsketch.tasks.tables import read_table
from fedsketch.tasks.trained import all_frozen


class LoadedModel(nn.Module):
    """Takes examples as they are in the world, (N, *shape): images with pixels from 0 to 1, say. They are normalised as in training, go
    through the frozen features if there are any, and then through `module`, the network that was trained.

    `classes` are the names of what its outputs stand for; without names, their numbers. A model of tables has their `schema`.
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
        """The rows of a .csv file with the columns that the model was trained on, as inputs; it needs no column to learn."""
        if self.schema is None:
            raise ModelError("The model was not trained on a table: give it tensors.")
        return inputs_of(read_table(Path(table), self.schema, targets=False), self.schema)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, *shape) to the outputs of the network: logits of classes, or numbers."""
        if self.normalised:
            inputs = (inputs - self.mean) / self.deviation
        if self.features is not None:
            inputs = feature_map(self.features, self.shape).of(inputs)
        outputs: Tensor = self.module(inputs)
        return outputs


def load(folder: Path, *, best: bool = False) -> LoadedModel:
    """The model of a run, in evaluation mode, on the CPU: that of its last round, or the best one that a validation found.

    Raises `ModelError` with a sentence where the folder holds none.
    """
    files = RunFolder(folder)
    path = files.best if best else files.model
    if not path.is_file():
        why = "no validation chose a best model" if best else "the run has not finished"
        raise ModelError(
            f"{folder} has no {path.name}, because {why}: name the folder of a run that has."
        )
    config, interface = _described(files)
    module = models.build(config.model, interface.network_shape, interface.outputs, config.seed)
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
            f"{files.path} does not say what its model is like, because {files.config.name} or {files.interface.name} is missing, "
            f"damaged, or of another version ({error}): take the whole folder of a run."
        ) from error


def _fill(module: nn.Module, path: Path) -> None:
    """Every parameter and buffer, from the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{path} does not hold the weights of the run's model ({' '.join(str(error).split())}): take the whole folder of a run."
        ) from error
