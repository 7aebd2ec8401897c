"""The subspace sketch: it projects every part of a vector, such as each tensor of a model, onto a few orthonormal
directions.

The directions of a part are the top right singular vectors of given vectors. A part that has no more numbers than
requested directions is kept whole, so that nothing is lost or rotated. If the given vectors have a smaller rank than
requested, random directions are added. So the size of a sketch is always the same, all its directions are orthonormal,
and the noise has the same distribution in all coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.row_space import PrincipalDirections
from fedsketch.sketching.sketch import DigestPart, Sketch

CUTOFF = 1e-10  # singular values below this share of the largest count as rounding errors


@dataclass(frozen=True)
class Block:
    """The part vector[start:stop], which is sketched to `size` numbers."""

    start: int
    stop: int
    size: int

    @property
    def whole(self) -> bool:
        """Whether the part is sent whole."""
        return self.size == self.stop - self.start


def blocks_of(bounds: Iterable[tuple[int, int]], rank: int) -> tuple[Block, ...]:
    """Return blocks for these (start, stop) bounds, each with at most `rank` directions."""
    return tuple(Block(start, stop, min(rank, stop - start)) for start, stop in bounds)


class SubspaceSketch(Sketch):
    """S = blockdiag(V_1, V_2, ...) with V_l^T V_l = I. A basis of None means the identity: the part is kept whole."""

    def __init__(self, blocks: Sequence[Block], bases: Sequence[Tensor | None]) -> None:
        super().__init__(sum(block.size for block in blocks), blocks[-1].stop)
        for block, basis in zip(blocks, bases, strict=True):
            wanted = None if block.whole else (block.size, block.stop - block.start)
            if (None if basis is None else tuple(basis.shape)) != wanted:
                raise ValueError(f"The directions of {block} should have the shape {wanted}.")
        self.blocks = tuple(blocks)
        self.bases = tuple(bases)

    @classmethod
    def restored(cls, blocks: Sequence[Block], rounded: Sequence[Tensor | None]) -> SubspaceSketch:
        """Make a sketch from directions that were rounded for sending. They are made orthonormal again, in the same
        way on server and device.

        Raises if directions are not finite or not linearly independent.
        """
        bases = [None if basis is None else orthonormalise(basis.float()) for basis in rounded]
        return cls(blocks, bases)

    def matrices(self, device: torch.device) -> list[Tensor]:
        """Return v_1, V_2, ..., with an identity for every part that is kept whole."""
        return [
            torch.eye(block.size, device=device) if basis is None else basis.to(device).T
            for block, basis in zip(self.blocks, self.bases, strict=True)
        ]

    @property
    def description_bytes(self) -> int:
        return sum(2 * basis.numel() for basis in self.bases if basis is not None)  # float16

    def row_norms_squared(self) -> Tensor:
        parts = [
            torch.ones(block.size, dtype=torch.float64)
            if basis is None
            else basis.double().square().sum(dim=0).cpu()
            for block, basis in zip(self.blocks, self.bases, strict=True)
        ]
        return torch.cat(parts)

    def forward_rows(self, rows: Tensor) -> Tensor:
        return torch.cat(
            [
                part if basis is None else part @ basis.T.to(part)
                for part, basis in zip(self._parts_of(rows), self.bases, strict=True)
            ],
            dim=1,
        )

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        sizes = [block.size for block in self.blocks]
        return torch.cat(
            [
                part if basis is None else part @ basis.to(part)
                for part, basis in zip(torch.split(rows, sizes, dim=1), self.bases, strict=True)
            ],
            dim=1,
        )

    def _parts_of(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, [block.stop - block.start for block in self.blocks], dim=1)

    def digest_parts(self) -> Iterable[DigestPart]:
        for block, basis in zip(self.blocks, self.bases, strict=True):
            yield block.size
            yield "whole" if basis is None else basis


def principal_directions(rows: Tensor, size: int, seed: int) -> tuple[Tensor, int]:
    """Return the top right singular vectors of `rows` (n, p), as `size` orthonormal rows of float64, and how many of
    them are in the span of `rows`.

    The others are random directions from the seed, orthogonal to these.
    """
    principal = PrincipalDirections(rows.shape[1])
    principal.feed(rows)
    directions, values = principal.top(size, CUTOFF)
    found = len(values)
    if found < size:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(rows.shape[1], size - found, dtype=torch.float64, generator=generator)
        directions = torch.linalg.qr(torch.cat([directions, drawn.to(rows.device)], dim=1))[0]
    return directions.T, found
