"""Low-rank smoothing of a stack of matrices, one per client: the tensor SVD of FedCEO.

A stack has the shape (K, rows, columns). Its slices are the K matrices of the unnormalised Fourier transform over the
clients; slice 0 is the sum. The tensor nuclear norm is the mean of the nuclear norms of the slices. The slices of a
real stack are conjugate in pairs, so K//2 + 1 of them are enough. Of these, slice 0 is real, and so is slice K/2 for
an even K.

The transform treats the clients as if they were arranged in a circle. So the result depends on the order of the
clients, but not on a rotation or reversal of that order. With a threshold so large that only slice 0 is left, the
order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# If a slice has at least this ratio of rows to columns, the eigenvectors of its small Gram matrix take less time than
# its singular vectors.
_TALL = 1.5


@dataclass(frozen=True)
class Smoothed:
    """The smoothed stack, and the singular values of the slices before smoothing: (K//2 + 1, min(rows, columns)), in
    descending order."""

    stack: Tensor
    spectrum: Tensor


def smooth(stack: Tensor, threshold: float) -> Smoothed:
    """Return argmin over W of |W|_* + |W - stack|_F^2 / (2 threshold): subtract the threshold from the singular values
    of every slice, down to 0 at most.

    FedCEO, Eq. (2) and (3), with threshold = 1 / (2 lambda).
    """
    if threshold < 0:
        raise ValueError(f"The threshold must not be negative, but is {threshold}.")
    count = len(stack)
    if stack.shape[1] < stack.shape[2]:
        flipped = smooth(stack.transpose(1, 2), threshold)
        return Smoothed(flipped.stack.transpose(1, 2), flipped.spectrum)
    slices = torch.fft.rfft(stack, dim=0)
    real = [0, count // 2] if count % 2 == 0 else [0]
    paired = [index for index in range(len(slices)) if index not in real]
    spectrum = torch.empty(len(slices), stack.shape[2], dtype=stack.dtype, device=stack.device)
    for chosen, part in ((real, slices[real].real), (paired, slices[paired])):
        if chosen:
            shrunk, values = _shrink(part, threshold)
            slices[chosen] = shrunk.to(slices.dtype)
            spectrum[chosen] = values.to(stack.dtype)
    return Smoothed(torch.fft.irfft(slices, n=count, dim=0), spectrum)


def _shrink(slices: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return tall matrices with the threshold subtracted from every singular value (at least 0), and the values
    before."""
    rows, columns = slices.shape[1:]
    if rows >= _TALL * columns:
        # The result is A V diag(f) V^*, with the eigenvectors V of A^* A. In double precision the error of a singular
        # value is at most 1e-8 of the largest.
        wide = slices.to(torch.complex128 if slices.is_complex() else torch.float64)
        squares, right = torch.linalg.eigh(wide.mH @ wide)
        values, right = squares.clamp(min=0).sqrt().flip(-1), right.flip(-1)
        factors = _factors(values, threshold)
        small = (right * factors[:, None, :].to(right.dtype)) @ right.mH
        return slices @ small.to(slices.dtype), values
    left, values, right_h = torch.linalg.svd(slices, full_matrices=False)
    kept = (values - threshold).clamp(min=0)
    return (left * kept[:, None, :].to(left.dtype)) @ right_h, values


def _factors(values: Tensor, threshold: float) -> Tensor:
    """Return the share of each singular value that is left after subtracting the threshold."""
    if threshold == 0:
        return torch.ones_like(values)
    return (1 - threshold / values.clamp(min=torch.finfo(values.dtype).tiny)).clamp(min=0)


def t_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the t-product of two stacks, (K, m, n) and (K, n, p): their slices are multiplied one by one."""
    slices = torch.fft.rfft(left, dim=0) @ torch.fft.rfft(right, dim=0)
    return torch.fft.irfft(slices, n=len(left), dim=0)


def tensor_nuclear_norm(stack: Tensor) -> Tensor:
    """Return the mean of the nuclear norms of the K slices."""
    norms = torch.linalg.svdvals(torch.fft.rfft(stack, dim=0)).sum(dim=1)
    count = len(stack)
    paired = norms[1 : (count + 1) // 2].sum()
    alone = norms[0] + (norms[-1] if count % 2 == 0 and count > 1 else 0)
    return (alone + 2 * paired) / count
