"""Scenes of evaluations on devices: like those of training, with one canary that has held-out examples or not.

The vectors are too short for several canaries to have their own directions, so there is one at a time.
"""

from __future__ import annotations

import secrets

import numpy as np

from fedsketch.attacks.canaries import FEATURES, CanaryWorkload
from fedsketch.attacks.scene import Matrix, SceneSimulator
from fedsketch.attacks.shrink import AuditRun
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation, sampler_of
from fedsketch.strategies.rounds.sampling import CohortSampler


class EvaluationSimulator(SceneSimulator):
    """Simulates evaluations of the model with which a run starts."""

    @classmethod
    def coordinator_of(
        cls, run: AuditRun, workload: CanaryWorkload, cohorts: CohortSampler | None
    ) -> Coordinator:
        trained = super().coordinator_of(run, workload, None).strategy
        evaluation = FederatedEvaluation(trained)
        drawn = cohorts or sampler_of(evaluation.config, secrets.randbits(128))
        return Coordinator(evaluation, drawn)

    def directions(self) -> Matrix:
        return np.eye(FEATURES)[:1]
