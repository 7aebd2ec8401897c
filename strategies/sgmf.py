"""SGMF, sparsified Gaussian matrix factorisation (Chen, Isik, Kairouz, No, Oh, Xu 2024).

This is L2-CSGM (`strategies.csgm`) with noise that is correlated over rounds, so that the models contain less of it.
In round t the trusted server adds row t of C^-1 Z to the sum, where Z is independent Gaussian noise
(`privacy.mechanisms.correlated_noise`), and takes a step of SGD. The workload A is the matrix that turns the sums of
the rounds into models; it includes the server's momentum. C is computed for A, and the models of a pass contain the
noise A C^-1 Z. With `rate: 1` this is DP-FTRL (Denisov et al. 2022).

Formal guarantees, against `model` and `client`, per client, zero-out adjacency (proofs:
`privacy.accounting.factorisation`). A pass is a series of rounds in which every client is drawn once.
- `restarts: true`: the noise and the order of the clients start anew with every pass. A client is in at most one round
  of a pass.
- `restarts: false`: one C for all rounds, with at most as many diagonals as a pass has rounds. Two rounds of the same
  client are at least a pass apart.

Either way a pass costs one release. The server enforces this: it remembers the last round of each client, and does not
ask a client that would come too early. An aborted attempt does not count as taking part, because the trusted server
throws it away.
"""

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedsketch.conf import Config
from fedsketch.conf.schema import Against
from fedsketch.conf.strategy.sgmf import SgmfConfig
from fedsketch.privacy.accounting.factorisation import (
    Matrix,
    bandwidth,
    column_norm,
    error,
    factorise,
    workload,
)
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    FullPasses,
    Gaussian,
    MatrixGaussian,
    NoiseLaw,
    Release,
)
from fedsketch.privacy.mechanisms.correlated_noise import CorrelatedNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.csgm import Csgm, CsgmDevice
from fedsketch.strategies.noise.server import ServerNoise
from fedsketch.strategies.rounds.messages import Aggregate
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MatrixNoise(ServerNoise):
    """Noise of a trusted server that is correlated over rounds.

    The noise multiplier is the standard deviation of Z divided by the sensitivity of a pass, which is the clip times
    `column_norm`. The noise in the sum of a round has `row_norm` times the standard deviation of Z.
    """

    column_norm: float
    row_norm: float
    rounds_per_pass: int

    def variance(self, cohort: int, clients: int) -> float:
        return (self.noise_multiplier * self.column_norm * self.row_norm) ** 2

    def _release(self, multiplier: float, against: Against, cohort: int, clients: int) -> Release:
        seen = super()._release(multiplier * self.column_norm, against, cohort, clients)
        law = seen.law
        correlated: NoiseLaw
        if isinstance(law, Gaussian):
            correlated = MatrixGaussian(law.noise_multiplier, self.column_norm)
        else:
            assert isinstance(law, CoordinateSampledGaussian)
            correlated = replace(law, column_norm=self.column_norm)
        return replace(seen, law=correlated, sampling=FullPasses(self.rounds_per_pass))


class Sgmf(Csgm):
    """The server half: a step of SGD on the mean, which has correlated noise."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        assert isinstance(config.strategy, SgmfConfig)
        self.matrix = config.strategy
        self.rounds_per_pass = cohorts.rounds_per_pass
        super().__init__(config, job, model, cohorts)
        self.correlated = CorrelatedNoise(self.strategy_matrix, model.size)
        self.took_part: dict[int, int] = {}  # the last round that each client took part in

    # ------------------------------------------------------------------ the noise
    @cached_property
    def strategy_matrix(self) -> Matrix:
        """The matrix C, called strategy matrix in the literature."""
        rounds, momentum, passes = self._span
        band = min(self.matrix.band or self.rounds_per_pass, rounds)
        return factorise(self.matrix.factorisation, rounds, momentum, band, passes)

    @property
    def _span(self) -> tuple[int, float, int]:
        """The number of rounds that C covers, the optimiser's momentum, and how many times the noise starts anew."""
        rounds, momentum = self.config.rounds, self.matrix.server.momentum
        if not self.matrix.restarts:
            return rounds, momentum, 1
        return self.rounds_per_pass, momentum, -(-rounds // self.rounds_per_pass)

    def plan_noise(self) -> MatrixNoise:
        noise = super().plan_noise()
        assert isinstance(noise, ServerNoise)
        norm = column_norm(self.strategy_matrix)
        usual = (noise.config, noise.dim, noise.rows, noise.clip, noise.multiplier, noise.law)
        return MatrixNoise(*usual, norm, self._row_norms[-1], self.rounds_per_pass)

    def noise_of(self, server_round: int) -> MatrixNoise:
        noise = self.noise
        assert isinstance(noise, MatrixNoise)
        row = float(self._row_norms[(server_round - 1) % len(self._row_norms)])
        return replace(noise, multiplier=noise.noise_multiplier, row_norm=row)

    @cached_property
    def _row_norms(self) -> NDArray[np.float64]:
        return np.linalg.norm(np.linalg.inv(self.strategy_matrix), axis=1)

    def server_noise(
        self, server_round: int, mechanism: Mechanism, dim: int, variance: float
    ) -> NDArray[np.float64]:
        row = self.correlated.row(server_round - 1, lambda index: self._stream(index + 1))
        noise = self.noise_of(server_round)
        deviation = mechanism.noise_std((noise.noise_multiplier * noise.column_norm) ** 2)
        return self._law().turned(deviation * row, server_round)

    def clients(self, aggregate: Aggregate) -> float:
        """Return the same number for all rounds. Otherwise the noise of one round would not cancel that of another."""
        return self.config.clients.total / self.rounds_per_pass

    # ------------------------------------------------------------------ who may take part
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        early = {
            client
            for client in self.cohorts.draw(server_round)
            if self._too_early(client, server_round)
        }
        if early:
            log.warning(
                "Round %d: clients %s are not asked, because they took part too recently.",
                server_round,
                sorted(early),
            )
        self.lost = self.lost | early
        return super().configure_train(server_round, arrays, config, grid)

    def _too_early(self, client: int, server_round: int) -> bool:
        last = self.took_part.get(client)
        if last is None:
            return False
        if self.matrix.restarts:
            return (last - 1) // self.rounds_per_pass == (server_round - 1) // self.rounds_per_pass
        return server_round - last < self.rounds_per_pass

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.took_part |= dict.fromkeys(aggregate.members, server_round)
        super().update(server_round, aggregate)

    # ------------------------------------------------------------------ remarks and checkpoints
    def remarks(self) -> str:
        said = super().remarks()
        if self.rounds_per_pass == 1:
            return (
                f"{said} Every client is in every round. Then correlated noise cannot beat the best independent noise, "
                "so the noise of this run is independent. Lower clients.per_round for noise that cancels."
            )
        matrix = self.strategy_matrix
        target = workload(*self._span)
        ratio = error(target, np.eye(len(matrix))) / (
            error(target, matrix) * column_norm(matrix) ** 2
        )
        kept = bandwidth(matrix) - 1
        return (
            f"{said} The noise is correlated over {len(matrix)} rounds ({self.matrix.factorisation}): its variance in "
            f"the models is {ratio:.3g} times smaller than that of independent noise. The server keeps the noise of "
            f"{kept} rounds, also in its checkpoints: keep these secret."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. It contains the noise of released models, and is therefore secret."""
        kept = {"noise": self.correlated.state_dict(), "took_part": dict(self.took_part)}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.correlated.load_state_dict(state["noise"])
        self.took_part = dict(state["took_part"])


SERVER, DEVICE = Sgmf, CsgmDevice
