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

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsketch.conf.strategy.sgmf import SgmfConfig
from fedsketch.privacy.accounting.factorisation import (
    Matrix,
    bandwidth,
    column_norm,
    error,
    factorise,
    workload,
)
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling
from fedsketch.privacy.mechanisms.correlated_noise import CorrelatedRows
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.strategies.algorithm import Aggregate, Vector
from fedsketch.strategies.csgm import Csgm, CsgmDevice
from fedsketch.strategies.noise.matrix import MatrixNoise


class Sgmf(Csgm[SgmfConfig]):
    """The server half: a step of SGD on the mean, which has correlated noise."""

    def start(self) -> None:
        super().start()
        self.rows = CorrelatedRows(self.strategy_matrix, self.model.size)
        self.took_part: dict[int, int] = {}  # the last round that each client took part in

    @property
    def rounds_per_pass(self) -> int:
        return self.config.clients.rounds_per_pass

    # ------------------------------------------------------------------ the noise
    @cached_property
    def strategy_matrix(self) -> Matrix:
        """The matrix C, called strategy matrix in the literature."""
        rounds, momentum, passes = self._span
        band = min(self.settings.band or self.rounds_per_pass, rounds)
        return factorise(self.settings.factorisation, rounds, momentum, band, passes)

    @property
    def _span(self) -> tuple[int, float, int]:
        """The number of rounds that C covers, the optimiser's momentum, and how many times the noise starts anew."""
        rounds, momentum = self.config.rounds, self.settings.server.momentum
        if not self.settings.restarts:
            return rounds, momentum, 1
        return self.rounds_per_pass, momentum, -(-rounds // self.rounds_per_pass)

    def trusted_noise(self, upload: CoordinateSampling) -> MatrixNoise:
        independent, norm = self.independent_noise(upload), column_norm(self.strategy_matrix)
        return MatrixNoise(
            *(self.config, independent.dim, independent.rows, independent.clip),
            *(independent, norm, self._row_norms[-1], self.rounds_per_pass),
        )

    def plan_noise(self) -> MatrixNoise:
        self._plan = self.trusted_noise(self.upload())
        return self._plan

    def noise_of(self, server_round: int) -> MatrixNoise:
        row = float(self._row_norms[(server_round - 1) % len(self._row_norms)])
        return replace(self._plan, row_norm=row)

    @cached_property
    def _row_norms(self) -> NDArray[np.float64]:
        return np.linalg.norm(np.linalg.inv(self.strategy_matrix), axis=1)

    def added_noise(
        self,
        server_round: int,
        mechanism: Mechanism,
        dim: int,
        variance: float,
        stream: Callable[[int], Stream],
    ) -> Vector:
        row = self.rows.row(server_round - 1, lambda index: stream(index + 1))
        noise = self.noise_of(server_round)
        deviation = mechanism.noise_std((noise.noise_multiplier * noise.column_norm) ** 2)
        return self.upload().turned(deviation * row, server_round)

    def clients(self, aggregate: Aggregate) -> float:
        """Return the same number for all rounds. Otherwise the noise of one round would not cancel that of another."""
        return self.config.clients.total / self.rounds_per_pass

    # ------------------------------------------------------------------ who may take part
    def must_pause(self, client: int, server_round: int) -> bool:
        last = self.took_part.get(client)
        if last is None:
            return False
        if self.settings.restarts:
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
            f"{said} The noise is correlated over {len(matrix)} rounds ({self.settings.factorisation}): its variance "
            f"in the models is {ratio:.3g} times smaller than that of independent noise. The server keeps the noise of "
            f"{kept} rounds, also in its checkpoints: keep these secret."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. It contains the noise of released models, and is therefore secret."""
        kept = {"noise": self.rows.state_dict(), "took_part": dict(self.took_part)}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rows.load_state_dict(state["noise"])
        self.took_part = dict(state["took_part"])


SERVER, DEVICE = Sgmf, CsgmDevice
