"""Gradient inversion: how well a client's picture can be reconstructed from its upload, and from what a server sees.
FedCEO, section 5.3.

    python benchmarks/inversion.py [--data digits | --data fashion_mnist --data-root DIR] [--images 4]
        [--page inversion.html]

Every client has one example and sends one gradient: the easiest case for the attack, which is given the label as well.
It looks for the input whose gradient points where the upload points (Deep Leakage from Gradients, Zhu et al. 2019, with
the cosine distance of Geiping et al. 2020, which does not mind a clip). The uploads are made by the devices' own code.
For each kind of upload: the peak signal-to-noise ratio of the picture found to the true one, in decibels, for some
clients, and an HTML page with all pictures. Exits with 1 unless the attack works on plain FedAvg (above 20 dB) and
fails on everything that leaves a device under the default configuration (below 12 dB); about the latter, a grey picture
reaches 6 to 12 dB by itself.
"""

import argparse
import base64
import io
import sys
from collections.abc import Callable
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fedsketch.conf import compose
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.runtime.environment import simulated_devices
from fedsketch.server.report.page import write_page
from fedsketch.strategies.algorithm import Aggregate, LocalWork
from fedsketch.strategies.fedceo import FedCeo
from fedsketch.strategies.local.forms import rows
from fedsketch.strategies.registry import make_device_half, make_strategy
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.workload import Workload

CLIENTS = 20
COMMON = [
    *(f"clients.total={CLIENTS}", f"clients.per_round={CLIENTS}", "device=cpu"),
    *("data/partition=one_example", "strategy.local.steps=1", "strategy.local.batch=0"),
]
NONE, PLAIN, NOISED, SMOOTHED, SUM, DEFAULT = (
    "a grey picture, for comparison",
    "fedavg, an upload",
    "udp_fedavg, an upload",
    "fedceo, a model after smoothing",
    "udp_fedavg, the sum under secure aggregation",
    "the default (dome), an upload without its masks",
)
CEO = ["strategy=fedceo", "strategy.local.epochs=null", "secagg=none", "privacy.against=model"]
Map = Callable[[Tensor], Tensor]


class Scene:
    """The server's and the devices' halves of one configuration, in its first round."""

    def __init__(self, *overrides: str) -> None:
        self.config = compose([*COMMON, *overrides])
        self.workload = Workload(self.config)
        self.model = self.workload.model()
        self.strategy = make_strategy(self.config, self.workload, self.model)
        self.mechanism = self.strategy.mechanism(1, CLIENTS)
        payload = self.strategy.broadcast(1)
        arrays = {"model": self.model.vector.clone(), **payload.tensors}
        self.broadcast = Broadcast(self.config, 1, self.mechanism, arrays, payload.scalars)
        self.half = make_device_half(self.config.strategy.name)
        self.prepared = self.half.prepare(self.broadcast, self.model)

    def work(self, client: int) -> LocalWork:
        shard = self.workload.shard(client)
        self.model.load(self.broadcast.model)
        return LocalWork(self.broadcast, shard, self.model, torch.Generator(), {}, client)

    def upload(self, client: int) -> Tensor:
        """Return what leaves a device, in real numbers: clipped, rounded and noised by the product's own code."""
        with simulated_devices(self.config), Stream(derived_key(0, "inversion", client)) as stream:
            made = self.mechanism.protect(
                rows(self.half, self.prepared, self.work(client)), stream, 1
            )
        return torch.from_numpy(self.mechanism.total([made.vector], 1)).float()


def gradient_of(scene: Scene, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the model that was broadcast; it can be differentiated by the inputs."""
    module = scene.model.module
    scene.model.load(scene.broadcast.model)
    parameters = {
        name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()
    }
    loss = functional.cross_entropy(functional_call(module, parameters, (inputs,)), targets)
    parts = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    return torch.cat([part.flatten() for part in parts])


def invert(scene: Scene, seen: Tensor, client: int, linear: Map, steps: int, starts: int) -> Tensor:
    """Return the picture whose gradient points where `seen` does, from the best of several starts."""
    targets = scene.workload.shard(client).targets
    best, least = torch.empty(0), float("inf")
    for start in range(starts):
        generator = torch.Generator().manual_seed(start)
        shape = (1, *scene.workload.data_shape.shape)
        dummy = torch.rand(shape, generator=generator).requires_grad_()
        optimizer = torch.optim.Adam([dummy], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            optimizer.zero_grad()
            shown = linear(gradient_of(scene, dummy, targets))
            loss = 1 - functional.cosine_similarity(shown, seen, dim=0)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                dummy.clamp_(0, 1)
        if float(loss.detach()) < least:
            best, least = dummy.detach().clone(), float(loss.detach())
    return best


def decibels(picture: Tensor, truth: Tensor) -> float:
    error = float((picture - truth).square().mean())
    return float("inf") if error == 0 else float(-10 * torch.log10(torch.tensor(error)))


def attack(options: argparse.Namespace) -> dict[str, list[tuple[Tensor, Tensor, float]]]:
    """Return (found, true, decibels) of every client that is attacked, by the kind of what the attack is given."""
    where = [f"data={options.data}", f"model={options.model}"]
    if options.data_root:
        where.append(f"data.root={options.data_root}")
    noise = ["privacy.epsilon=null", f"privacy.noise_multiplier={options.noise}"]
    plain = Scene("strategy=fedavg", "secagg=none", *where)
    noised = Scene(*CEO, "strategy.every=null", *noise, *where)
    smoothing = Scene(*CEO, "strategy.every=1", "strategy.start=slots", *noise, *where)
    default = Scene(*where)
    uploads = [noised.upload(client) for client in range(CLIENTS)]
    stacked = [smoothing.upload(client) for client in range(CLIENTS)]
    ceo = smoothing.strategy
    assert isinstance(ceo, FedCeo)
    smoothing.model.load(smoothing.broadcast.model)
    parts = tuple(
        Aggregate(
            upload,
            1,
            smoothing.mechanism.noise_std(smoothing.mechanism.variance_per_device),
            (client,),
        )
        for client, upload in enumerate(stacked)
    )
    total = torch.stack(stacked).sum(dim=0)
    ceo.update(1, Aggregate(total, CLIENTS, 0.0, tuple(range(CLIENTS)), parts))
    assert ceo.slots is not None
    moved = smoothing.broadcast.model - ceo.slots

    def sketched(gradient: Tensor) -> Tensor:
        return default.prepared.sketch.forward(gradient[None])[0]

    def same(gradient: Tensor) -> Tensor:
        return gradient

    found: dict[str, list[tuple[Tensor, Tensor, float]]] = {}
    for client in range(options.images):
        truth = plain.workload.shard(client).inputs
        cases: list[tuple[str, Scene, Tensor, Map]] = [
            (PLAIN, plain, plain.upload(client)[:-1], same),
            (NOISED, noised, uploads[client], same),
            (SMOOTHED, smoothing, moved[client], same),
            (SUM, noised, torch.stack(uploads).mean(dim=0), same),
            (DEFAULT, default, default.upload(client), sketched),
        ]
        grey = torch.full_like(truth, 0.5)
        found.setdefault(NONE, []).append((grey, truth, decibels(grey, truth)))
        for name, scene, seen, linear in cases:
            picture = invert(scene, seen, client, linear, options.steps, options.starts)
            found.setdefault(name, []).append((picture, truth, decibels(picture, truth)))
    return found


def page(found: dict[str, list[tuple[Tensor, Tensor, float]]], file: Path) -> None:
    """All pictures, beside the true ones."""

    def shown(picture: Tensor) -> str:
        levels = (picture[0].clamp(0, 1) * 255).byte()
        image = Image.fromarray(
            levels[0].numpy() if len(levels) == 1 else levels.permute(1, 2, 0).numpy()
        )
        data = io.BytesIO()
        image.resize((96, 96), Image.Resampling.NEAREST).save(data, "PNG")
        code = base64.b64encode(data.getvalue()).decode()
        return f'<img alt="" src="data:image/png;base64,{code}">'

    first = next(iter(found.values()))
    head = "".join(f"<td>{shown(truth)}</td>" for _, truth, _ in first)
    rows = [f"<tr><th>the true picture</th>{head}</tr>"]
    for name, results in found.items():
        cells = "".join(f"<td>{shown(p)}<br>{db:.1f} dB</td>" for p, _, db in results)
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    title = "Gradient inversion"
    table = f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'
    write_page(file, title, f"<header><h1>{title}</h1></header><main>{table}</main>")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--noise", type=float, default=1.0, help="noise multiplier of the sum")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--page", type=Path, default=Path("inversion.html"))
    options = parser.parse_args()
    found = attack(options)
    table = Table(
        "what the attack is given", "mean dB", "best dB", title=f"{options.data}, {options.model}"
    )
    means = {}
    for name, results in found.items():
        values = [db for _, _, db in results]
        means[name] = sum(values) / len(values)
        table.add_row(name, f"{means[name]:.1f}", f"{max(values):.1f}")
    Console().print(table)
    page(found, options.page)
    print(f"Pictures: {options.page}")
    return 0 if means[PLAIN] > 20 and means[DEFAULT] < 12 else 1


if __name__ == "__main__":
    sys.exit(main())
