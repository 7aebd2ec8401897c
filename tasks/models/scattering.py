"""The 2-d wavelet scattering of small images (Bruna and Mallat 2013): fixed features, with which private learning
works well.

With J = 2 scales and L = 8 angles an image becomes 81 channels at a quarter of its resolution:

    S0 = x * phi,    S1 = |x * psi_a| * phi,    S2 = ||x * psi_a| * psi_b| * phi,

where `*` is convolution, a runs through the 16 wavelets of both scales, and (a, b) through the 64 pairs of a fine and
a coarse one. psi are Morlet wavelets (with zero mean), phi is a Gaussian. The image is mirrored at its border, and
convolutions are circular on the padded image. The output of a coarse wavelet is kept at every second pixel only. For
it, phi is also sampled at every second pixel, and multiplied by four.

Convolutions with wavelets are products in Fourier space. If the result is kept at every second pixel only, the product
is folded first: the Fourier transform of every second pixel is the mean of the four quarters. phi is a product of a
function of x and a function of y. So it is applied as two small matrices, which compute only the pixels that are kept.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SCALES = 2  # J
ANGLES = 8  # L
STRIDE = 2**SCALES
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
SMALLEST = 2 * STRIDE  # pixels; a smaller image has too few pixels to mirror
_WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
_FREQUENCY = 3 * math.pi / 4  # of the finest wavelet, in radians per pixel
_SLANT = 4 / ANGLES  # how much longer the envelope is across the direction of the wave
_AT_ONCE = 8  # images; their intermediate results fit into the processor's cache: twice as fast


class Filters(NamedTuple):
    """The filters for padded images of one size."""

    fine: Tensor  # (ANGLES, H, W): the wavelets of the first scale in Fourier space, where they are real
    coarse: Tensor  # (ANGLES, H, W): those of the second scale
    # phi along a column, from all pixels, or from every second pixel, to the pixels that are kept.
    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]  # the same along a row


def scattering(images: Tensor) -> Tensor:
    """Map (N, C, H, W) to (N, 81 C, H / 4, W / 4), each image and channel by itself. H and W must be multiples of 4
    and at least 8."""
    count, channels, height, width = images.shape
    filters = _filters(height, width)
    flat = images.reshape(-1, 1, height, width)
    if torch.compiler.is_exporting():  # a loop would fix the size of batches in the exported model
        made = _scattered(flat, filters)
    else:
        made = torch.empty(count * channels, CHANNELS, height // STRIDE, width // STRIDE)
        for begin in range(0, len(flat), _AT_ONCE):
            made[begin : begin + _AT_ONCE] = _scattered(flat[begin : begin + _AT_ONCE], filters)
    return made.view(count, channels * CHANNELS, *made.shape[2:])


def _scattered(images: Tensor, filters: Filters) -> Tensor:
    padded = torch.nn.functional.pad(images, [STRIDE] * 4, mode="reflect")
    spectrum = torch.fft.fft2(padded)
    fine = torch.fft.ifft2(spectrum * filters.fine).abs()
    coarse = torch.fft.ifft2(_folded(spectrum * filters.coarse)).abs()
    pairs = torch.fft.fft2(fine).unsqueeze(2) * filters.coarse
    second = torch.fft.ifft2(_folded(pairs)).abs().flatten(1, 2)
    whole = _smoothed(torch.cat([padded, fine], 1), filters, 0)
    return torch.cat([whole, _smoothed(torch.cat([coarse, second], 1), filters, 1)], 1)


def _folded(spectrum: Tensor) -> Tensor:
    """Return the Fourier transform of every second pixel, from that of all pixels."""
    top, bottom = spectrum.chunk(2, -2)
    left, right = (top + bottom).chunk(2, -1)
    return (left + right) / 4


def _smoothed(images: Tensor, filters: Filters, halved: int) -> Tensor:
    return filters.rows[halved] @ images @ filters.columns[halved].T


@lru_cache(maxsize=4)
def _filters(height: int, width: int) -> Filters:
    height, width = height + 2 * STRIDE, width + 2 * STRIDE

    def bank(scale: int) -> Tensor:
        wavelets = [morlet(height, width, scale, angle) for angle in range(ANGLES)]
        return torch.fft.fft2(torch.stack(wavelets)).real.float()

    rows, columns = ((_kept(size, 1), _kept(size, 2)) for size in (height, width))
    return Filters(bank(0), bank(1), rows, columns)


def morlet(height: int, width: int, scale: int, angle: int) -> Tensor:
    """Return a wavelet around pixel (0, 0) of a torus: a Gabor function, minus a multiple of its envelope that makes
    the mean zero."""
    wave = _gabor(height, width, scale, angle, _FREQUENCY / 2**scale)
    envelope = _gabor(height, width, scale, angle, 0.0)
    return wave - wave.sum() / envelope.sum() * envelope


def _gabor(height: int, width: int, scale: int, angle: int, frequency: float) -> Tensor:
    """Return a plane wave times a Gaussian of integral 1, wrapped around the torus."""
    deviation, theta = _WIDTH * 2**scale, (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    y = _wrapped(height).view(-1, 1, _WRAPS, 1)
    x = _wrapped(width).view(1, -1, 1, _WRAPS)
    along, across = (
        y * math.cos(theta) + x * math.sin(theta),
        x * math.cos(theta) - y * math.sin(theta),
    )
    exponent = -(along**2 + (_SLANT * across) ** 2) / (2 * deviation**2)
    values = torch.polar(exponent.exp(), frequency * along).sum((2, 3))
    return values * _SLANT / (2 * math.pi * deviation**2)


def gaussian(size: int) -> Tensor:
    """Return phi along one side, around pixel 0 of a circle."""
    deviation = _WIDTH * 2 ** (SCALES - 1)
    values = (-(_wrapped(size) ** 2) / (2 * deviation**2)).exp().sum(1)
    return values / (math.sqrt(2 * math.pi) * deviation)


def _kept(size: int, step: int) -> Tensor:
    """Return the matrix from every step-th pixel of a padded side to the smoothed values at every fourth pixel of the
    image."""
    to, from_ = torch.arange(STRIDE, size - STRIDE, STRIDE), torch.arange(0, size, step)
    return (step * gaussian(size)[(to.view(-1, 1) - from_) % size]).float()


_WRAPS = 5  # with more turns a Gaussian is zero, even around the smallest torus


def _wrapped(size: int) -> Tensor:
    """Return the distances of the pixels from pixel 0 around the circle, (size, _WRAPS): the shortest and longer
    ones."""
    turns = torch.arange(_WRAPS) - _WRAPS // 2
    pixels = torch.arange(size)
    nearest = torch.where(pixels > size // 2, pixels - size, pixels)
    return (nearest.view(-1, 1) + size * turns).double()
