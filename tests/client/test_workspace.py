"""Where the randomness of a device's noise comes from."""

import pytest

from fedsketch.client.workspace import noise_stream
from fedsketch.privacy.simulation import SEED_VARIABLE


def test_a_devices_stream_is_secret_unless_its_process_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert noise_stream(1, 1).bytes(16) != noise_stream(1, 1).bytes(16)
    monkeypatch.setenv(SEED_VARIABLE, "7")
    assert noise_stream(1, 1).bytes(16) == noise_stream(1, 1).bytes(16)
    streams = {noise_stream(client, round).bytes(16) for client in (1, 2) for round in (1, 2)}
    assert len(streams) == 4
    monkeypatch.setenv(SEED_VARIABLE, "8")
    assert noise_stream(1, 1).bytes(16) not in streams
