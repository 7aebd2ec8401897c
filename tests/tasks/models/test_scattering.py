"""Scattering against its definition, written out pixel by pixel."""

import cmath
import math
import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsketch.tasks.models.scattering import CHANNELS, scattering

Image = NDArray[np.float64]
Wavelet = NDArray[np.complex128]


def _on_torus(height: int, width: int, value: object) -> Wavelet:
    """A function of the plane, wrapped around the torus."""
    assert callable(value)
    wrapped = np.zeros((height, width), complex)
    for y in range(-3 * height, 3 * height):
        for x in range(-3 * width, 3 * width):
            wrapped[y % height, x % width] += value(y, x)
    return wrapped


def _gaussian(height: int, width: int) -> Wavelet:
    variance = 1.6**2
    return _on_torus(
        height,
        width,
        lambda y, x: math.exp(-(x * x + y * y) / (2 * variance)) / (2 * math.pi * variance),
    )


def _morlet(height: int, width: int, scale: int, angle: int) -> Wavelet:
    """exp(-|B u|^2 / (2 s^2)) (exp(i xi u_1) - c), u = the pixel turned by theta, c such that the sum is zero."""
    theta, deviation = (3 - angle) * math.pi / 8, 0.8 * 2**scale
    frequency = 0.75 * math.pi / 2**scale

    def envelope(y: float, x: float) -> float:
        u = math.cos(theta) * y + math.sin(theta) * x
        v = -math.sin(theta) * y + math.cos(theta) * x
        return (
            math.exp(-(u * u + v * v / 4) / (2 * deviation**2)) / (2 * math.pi * deviation**2) / 2
        )

    def wave(y: float, x: float) -> complex:
        u = math.cos(theta) * y + math.sin(theta) * x
        return envelope(y, x) * cmath.exp(1j * frequency * u)

    waves, envelopes = _on_torus(height, width, wave), _on_torus(height, width, envelope)
    return waves - waves.sum() / envelopes.sum() * envelopes


def _convolved(image: Image | Wavelet, kernel: Wavelet) -> Wavelet:
    """Around the torus, one term after the other."""
    total = np.zeros(image.shape, complex)
    for y, x in np.ndindex(*kernel.shape):
        total += kernel[y, x] * np.roll(image, (y, x), (0, 1))
    return total


def _direct(image: Image) -> Image:
    padded = np.pad(image, 4, mode="reflect")
    size = padded.shape
    phi = _gaussian(*size)
    psi = [[_morlet(*size, scale, angle) for angle in range(8)] for scale in range(2)]

    def smoothed(values: Image, step: int) -> Image:
        whole = _convolved(values, step**2 * phi[::step, ::step]).real
        return whole[:: 4 // step, :: 4 // step][1:-1, 1:-1]

    fine = [np.abs(_convolved(padded, wavelet)) for wavelet in psi[0]]
    coarse = [np.abs(_convolved(padded, wavelet))[::2, ::2] for wavelet in psi[1]]
    pairs = [np.abs(_convolved(values, b))[::2, ::2] for values in fine for b in psi[1]]
    first = [smoothed(values, 1) for values in (padded, *fine)]
    return np.stack(first + [smoothed(values, 2) for values in (*coarse, *pairs)])


@pytest.mark.parametrize("shape", [(8, 8), (12, 8)])
def test_agrees_with_direct_convolution(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).normal(size=shape)
    made = scattering(torch.from_numpy(image).float()[None, None])[0].double().numpy()
    expected = _direct(image)
    assert made.shape == expected.shape == (CHANNELS, shape[0] // 4, shape[1] // 4)
    assert np.abs(made - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(expected[-1]).max() > 0.01  # the last ones are not nothing


def test_shapes() -> None:
    assert scattering(torch.zeros(3, 1, 28, 28)).shape == (3, 81, 7, 7)
    assert scattering(torch.zeros(2, 3, 32, 32)).shape == (2, 243, 8, 8)


def test_examples_and_channels_are_on_their_own() -> None:
    images = torch.randn(11, 2, 12, 12, generator=torch.Generator().manual_seed(1))
    together = scattering(images)
    for i in (0, 7, 8, 10):
        alone = [scattering(images[i : i + 1, c : c + 1])[0] for c in range(2)]
        torch.testing.assert_close(together[i], torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_a_constant_image_has_its_own_value_in_the_mean_and_nothing_in_the_waves() -> None:
    made = scattering(torch.full((1, 1, 16, 16), 2.0))[0]
    torch.testing.assert_close(made[0], torch.full((4, 4), 2.0), rtol=1e-3, atol=0)
    assert made[1:].abs().max() < 1e-4


@pytest.mark.slow
def test_ten_thousand_images_take_at_most_40_seconds_of_one_core() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    begin = time.process_time()
    scattering(torch.rand(10_000, 1, 28, 28))
    used = time.process_time() - begin
    torch.set_num_threads(threads)
    assert used < 40
