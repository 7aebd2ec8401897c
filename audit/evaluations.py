"""Scenes of evaluations on devices: the same as those of training, with one canary, whose held-out examples are there or not.

The vectors are short, so canaries could not have directions of their own: one at a time is looked for.
"""

from __future__ import annotations

import secrets

import numpy as np

from fedsketch.audit.canaries import FEATURES, CanaryJob
from fedsketch.audit.shrink import AuditRun
from fedsketch.audit.stage import Matrix, Stage
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.evaluation import FederatedEvaluation


class EvaluationStage(Stage):
    """Plays evaluations of the model that a run starts from."""

    @classmethod
    def strategy_of(
        cls, run: AuditRun, job: CanaryJob, cohorts: Cohorts | None
    ) -> FederatedStrategy:
        trained = super().strategy_of(run, job, None)
        evaluation = FederatedEvaluation(trained, secrets.randbits(128))
        evaluation.parcels = trained.parcels
        evaluation.cohorts = cohorts or evaluation.cohorts
        return evaluation

    def _directions(self) -> Matrix:
        return np.eye(FEATURES)[:1]
