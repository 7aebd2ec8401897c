"""Fed-SGM (Li, Chen, Banerjee 2025): local training, a random sketch from a seed, noise, and an optimiser on the desketched mean.

Per round: K local SGD steps from theta, Delta_i = theta - theta_K; s_i = R Delta_i, clipped, with noise, where R (b x d) has N(0, 1/b)
entries; the server steps along R^T of their mean (moments of it are post-processing). Neither side ever holds R: both make it from
the round's seed, in tiles. Where this mends the paper's text is listed in docs/strategies.md.

Formal guarantees: those of `strategies.shared.device_noise`, with an upload of b numbers, whoever knows R (`r_public`): the last step
before the noise clips the sketch. `r_secret` is a claim against an eavesdropper only, who sees the noisy sums and neither R nor a model
(`privacy.accounting.sketched`).
"""

import secrets
from collections.abc import Callable, MutableMapping
from functools import lru_cache

import torch

from fedsketch.conf import Config
from fedsketch.conf.schema import Randomness
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.identity import IdentitySketch
from fedsketch.sketching.sketch import Sketch
from fedsketch.strategies.dp_fedavg import DPFedAvg
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.device_noise import NoisePlan
from fedsketch.strategies.shared.local_update import unit_rows
from fedsketch.strategies.shared.messages import Aggregate, Broadcast, Number
from fedsketch.strategies.shared.sketch_size import sketch_size
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel

SEED = "sketch-seed"
SKETCHES: dict[str, Callable[[int, int, int], Sketch]] = {
    "gaussian": GaussianSketch,
    "hadamard": HadamardSketch,
    "count_sketch": CountSketch,
}


class FedSgm(DPFedAvg):
    """The server's half: an optimiser step on the desketched mean."""

    def __init__(
        self, config: Config, model: FlatModel, noise: NoisePlan, cohorts: Cohorts, examples: int
    ) -> None:
        super().__init__(config, model, noise, cohorts, examples)
        self.settings = _settings(config)
        self._seed = b""

    @staticmethod
    def upload_size(config: Config, model: FlatModel, server_round: int) -> int:
        settings = _settings(config)
        if settings.sketch == "identity":
            return model.size
        return sketch_size(settings.sketch_dim, model.size)

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        """The seed of R. It is public, unless r_secret rests on it: then nobody can know it before the round."""
        if (
            self.settings.accounting == "r_secret"
            and self.config.privacy.randomness is Randomness.secret
        ):
            self._seed = secrets.token_bytes(16)
        else:
            fresh = (server_round,) if self.settings.seed_per == "round" else ()
            self._seed = derived_key(self.config.seed, "sketch", *fresh)
        return {}, {SEED: self._seed}

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        mean = aggregate.sum / self.units(aggregate)
        self.optimizer.step(sketch_of(self.config, self.model, self._seed).adjoint(mean))


def local_step(
    broadcast: Broadcast,
    shard: Examples,
    model: FlatModel,
    generator: torch.Generator,
    memory: MutableMapping[str, torch.Tensor],
) -> torch.Tensor:
    """The device's half: R Delta of every unit."""
    config = broadcast.config
    rows = unit_rows(config, model, shard, generator)
    if config.privacy.clip is not None and _settings(config).clip != "after":
        rows = clip_rows(rows, config.privacy.clip)
    seed = broadcast.numbers[SEED]
    assert isinstance(seed, bytes)
    return sketch_of(config, model, seed).forward(rows)


def sketch_of(config: Config, model: FlatModel, seed: bytes) -> Sketch:
    """The sketch of a round, on either side."""
    size = FedSgm.upload_size(config, model, 1)
    return _sketch(_settings(config).sketch, size, model.size, int.from_bytes(seed, "big"))


@lru_cache(maxsize=1)
def _sketch(kind: str, size: int, d: int, seed: int) -> Sketch:
    """Made once a round for all clients that share a process."""
    return IdentitySketch(d) if kind == "identity" else SKETCHES[kind](size, d, seed)


def _settings(config: Config) -> FedSgmConfig:
    assert isinstance(config.strategy, FedSgmConfig)
    return config.strategy


SERVER, LOCAL_STEP = FedSgm, local_step
