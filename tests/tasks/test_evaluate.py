"""Accuracy and loss on the whole test set, whatever the chunks."""

import pytest
import torch
from torch.nn import functional

from fedsketch.conf import compose
from fedsketch.tasks import scores
from fedsketch.tasks.workload import Workload


@pytest.mark.parametrize("chunk", [7, 360, 100_000])
def test_equals_one_pass_over_the_test_set(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(scores, "_CHUNK", chunk)
    workload = Workload(compose(["device=cpu"]))
    model, test = workload.model(), workload.dataset.test
    found = scores.evaluate(model, test)
    with torch.no_grad():
        logits = model.module(test.inputs)
    assert found.keys() == {"accuracy", "loss"}
    assert found["accuracy"] == pytest.approx(
        float((logits.argmax(1) == test.targets).double().mean())
    )
    assert found["loss"] == pytest.approx(
        float(functional.cross_entropy(logits, test.targets)), rel=1e-5
    )
