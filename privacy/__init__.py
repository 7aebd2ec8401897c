"""Differential privacy: the mechanisms that protect data on the device, and the accounting of what they release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsketch.lazy import lazy

if TYPE_CHECKING:
    from fedsketch.privacy.accounting.accountant import Accountant, Spent
    from fedsketch.privacy.accounting.calibration import calibrate, calibrate_skellam
    from fedsketch.privacy.accounting.factorisation import column_norm, factorise
    from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
    from fedsketch.privacy.accounting.releases import (
        Adjacency,
        Adversary,
        CoordinateSampledGaussian,
        DrawnBy,
        FullPasses,
        Gaussian,
        MatrixGaussian,
        NoiseLaw,
        NoSampling,
        Poisson,
        Release,
        SecretDraw,
        Skellam,
        SketchedGaussian,
        SketchKnowledge,
        Unit,
        WithoutReplacement,
    )
    from fedsketch.privacy.mechanisms.bound_half import BoundHalf, TrainedModel
    from fedsketch.privacy.mechanisms.clipping import clip, clip_rows, finite_rows
    from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling
    from fedsketch.privacy.mechanisms.correlated_noise import CorrelatedRows
    from fedsketch.privacy.mechanisms.gaussian import GaussianNoise, add_gaussian
    from fedsketch.privacy.mechanisms.mechanism import Mechanism, RingShape, Upload
    from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
    from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
    from fedsketch.privacy.mechanisms.records import mechanism_from_record
    from fedsketch.privacy.mechanisms.ring_choice import choose_ring
    from fedsketch.privacy.mechanisms.rows import Factors, Rows
    from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
    from fedsketch.privacy.mechanisms.skellam_sampler import sample_skellam
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Accountant": "accounting.accountant",
            "Spent": "accounting.accountant",
            "calibrate": "accounting.calibration",
            "calibrate_skellam": "accounting.calibration",
            "column_norm": "accounting.factorisation",
            "factorise": "accounting.factorisation",
            "release_from_json": "accounting.release_json",
            "release_to_json": "accounting.release_json",
            "Adjacency": "accounting.releases",
            "Adversary": "accounting.releases",
            "CoordinateSampledGaussian": "accounting.releases",
            "DrawnBy": "accounting.releases",
            "FullPasses": "accounting.releases",
            "Gaussian": "accounting.releases",
            "MatrixGaussian": "accounting.releases",
            "NoSampling": "accounting.releases",
            "NoiseLaw": "accounting.releases",
            "Poisson": "accounting.releases",
            "Release": "accounting.releases",
            "SecretDraw": "accounting.releases",
            "Skellam": "accounting.releases",
            "SketchKnowledge": "accounting.releases",
            "SketchedGaussian": "accounting.releases",
            "Unit": "accounting.releases",
            "WithoutReplacement": "accounting.releases",
            "BoundHalf": "mechanisms.bound_half",
            "TrainedModel": "mechanisms.bound_half",
            "clip": "mechanisms.clipping",
            "clip_rows": "mechanisms.clipping",
            "finite_rows": "mechanisms.clipping",
            "CoordinateSampling": "mechanisms.coordinate_sampling",
            "CorrelatedRows": "mechanisms.correlated_noise",
            "GaussianNoise": "mechanisms.gaussian",
            "add_gaussian": "mechanisms.gaussian",
            "Mechanism": "mechanisms.mechanism",
            "RingShape": "mechanisms.mechanism",
            "Upload": "mechanisms.mechanism",
            "NoisyTraining": "mechanisms.noisy_training",
            "Stream": "mechanisms.randomness",
            "derived_key": "mechanisms.randomness",
            "mechanism_from_record": "mechanisms.records",
            "choose_ring": "mechanisms.ring_choice",
            "Factors": "mechanisms.rows",
            "Rows": "mechanisms.rows",
            "SkellamRing": "mechanisms.skellam_ring",
            "sample_skellam": "mechanisms.skellam_sampler",
        },
    )

__all__ = [
    "Accountant",
    "Adjacency",
    "Adversary",
    "BoundHalf",
    "CoordinateSampledGaussian",
    "CoordinateSampling",
    "CorrelatedRows",
    "DrawnBy",
    "Factors",
    "FullPasses",
    "Gaussian",
    "GaussianNoise",
    "MatrixGaussian",
    "Mechanism",
    "NoSampling",
    "NoiseLaw",
    "NoisyTraining",
    "Poisson",
    "Release",
    "RingShape",
    "Rows",
    "SecretDraw",
    "Skellam",
    "SkellamRing",
    "SketchKnowledge",
    "SketchedGaussian",
    "Spent",
    "Stream",
    "TrainedModel",
    "Unit",
    "Upload",
    "WithoutReplacement",
    "add_gaussian",
    "calibrate",
    "calibrate_skellam",
    "choose_ring",
    "clip",
    "clip_rows",
    "column_norm",
    "derived_key",
    "factorise",
    "finite_rows",
    "mechanism_from_record",
    "release_from_json",
    "release_to_json",
    "sample_skellam",
]
