"""Scenes of evaluations on devices: like those of training, with one canary that has held-out examples or not.

The vectors are too short for several canaries to have their own directions, so there is one at a time.
"""

from __future__ import annotations

import secrets

import numpy as np

from fedsketch.audit.canaries import FEATURES, CanaryJob
from fedsketch.audit.shrink import AuditRun
from fedsketch.audit.stage import Matrix, Stage
from fedsketch.strategies.rounds.base import FederatedStrategy
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from fedsketch.strategies.rounds.sampling import CohortSampler


class EvaluationStage(Stage):
    """Simulates evaluations of the model with which a run starts."""

    @classmethod
    def strategy_of(
        cls, run: AuditRun, job: CanaryJob, cohorts: CohortSampler | None
    ) -> FederatedStrategy:
        trained = super().strategy_of(run, job, None)
        evaluation = FederatedEvaluation(trained, secrets.randbits(128))
        evaluation.parcels = trained.parcels
        evaluation.cohorts = cohorts or evaluation.cohorts
        return evaluation

    def _directions(self) -> Matrix:
        return np.eye(FEATURES)[:1]
