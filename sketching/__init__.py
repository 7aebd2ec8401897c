"""Sketches: linear maps from R^d to R^k and back. Some are computed from a seed, others are learned from gradients.
This package also has the methods that learn them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsketch.lazy import lazy

if TYPE_CHECKING:
    from fedsketch.sketching.blocks import BlockSketch, block_folds
    from fedsketch.sketching.count_sketch import CountSketch
    from fedsketch.sketching.folding import Fold, folds_of_rank, folds_of_size
    from fedsketch.sketching.gaussian import GaussianSketch
    from fedsketch.sketching.hadamard import HadamardSketch, walsh_hadamard
    from fedsketch.sketching.identity import IdentitySketch
    from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
    from fedsketch.sketching.noise_floor import NoiseFloor, keep_above, keep_count, keep_energy
    from fedsketch.sketching.row_space import PrincipalDirections
    from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
    from fedsketch.sketching.sketch import Sketch
    from fedsketch.sketching.streaming_pca import StreamingPCA
    from fedsketch.sketching.subspace import Block, SubspaceSketch, blocks_of, principal_directions
    from fedsketch.sketching.tensor_svd import Smoothed, smooth, t_product, tensor_nuclear_norm
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "BlockSketch": "blocks",
            "block_folds": "blocks",
            "CountSketch": "count_sketch",
            "Fold": "folding",
            "folds_of_rank": "folding",
            "folds_of_size": "folding",
            "GaussianSketch": "gaussian",
            "HadamardSketch": "hadamard",
            "walsh_hadamard": "hadamard",
            "IdentitySketch": "identity",
            "LayerwiseSketch": "layerwise_sketch",
            "NoiseFloor": "noise_floor",
            "PrincipalDirections": "row_space",
            "PublicStream": "seeded_sketch",
            "Purpose": "seeded_sketch",
            "Sketch": "sketch",
            "StreamingPCA": "streaming_pca",
            "Block": "subspace",
            "SubspaceSketch": "subspace",
            "blocks_of": "subspace",
            "principal_directions": "subspace",
            "Smoothed": "tensor_svd",
            "smooth": "tensor_svd",
            "t_product": "tensor_svd",
            "tensor_nuclear_norm": "tensor_svd",
            "keep_above": "noise_floor",
            "keep_count": "noise_floor",
            "keep_energy": "noise_floor",
        },
    )

__all__ = [
    "Block",
    "BlockSketch",
    "CountSketch",
    "Fold",
    "GaussianSketch",
    "HadamardSketch",
    "IdentitySketch",
    "LayerwiseSketch",
    "NoiseFloor",
    "PrincipalDirections",
    "PublicStream",
    "Purpose",
    "Sketch",
    "Smoothed",
    "StreamingPCA",
    "SubspaceSketch",
    "block_folds",
    "blocks_of",
    "folds_of_rank",
    "folds_of_size",
    "keep_above",
    "keep_count",
    "keep_energy",
    "principal_directions",
    "smooth",
    "t_product",
    "tensor_nuclear_norm",
    "walsh_hadamard",
]
