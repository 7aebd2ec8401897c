"""The pictures of the docs: the round, and what each strategy sends. `python docs/images/make_pictures.py` writes the
SVG files beside it.

Vectors are drawn as bars. The heights are made up, and the same in every call.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  .panel { fill: #f6f8fa; stroke: #afb8c1 }
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .step { font-size: 13px; font-weight: 600 }
  .note { font-size: 12px; fill: #57606a }
  .value { fill: #0969da }
  .noise { fill: #bf5700 }
  .mask { fill: #8250df }
  .faint { fill: #afb8c1 }
  .line { stroke: #57606a; fill: none }
  .axis { stroke: #afb8c1 }
  .head { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #30363d }
    .panel { fill: #161b22; stroke: #484f58 }
    text { fill: #e6edf3 }
    .note { fill: #9da7b1 }
    .value { fill: #4493f8 }
    .noise { fill: #f0883e }
    .mask { fill: #ab7df8 }
    .faint { fill: #484f58 }
    .line { stroke: #9da7b1 }
    .axis { stroke: #484f58 }
    .head { fill: #9da7b1 }
  }
"""
LONG, SHORT = 20, 6  # numbers of a gradient and of a sketch, as drawn
STEP_WIDTH, STEP_HEIGHT = 88, 46


def centred(x: float, y: float, style: str, text: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="middle">{text}</text>'


def left(x: float, y: float, style: str, text: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{text}</text>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return (
        f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    )


def arrow(*points: tuple[float, float]) -> str:
    """A line with a head at its end."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    (x0, y0), (x1, y1) = points[-2:]
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    head = f'<path class="head" d="M0,0 L-9,-4.5 L-9,4.5 Z" transform="translate({x1:g} {y1:g}) rotate({angle:g})"/>'
    return f'<polyline class="line" stroke-width="1.5" points="{path}"/>{head}'


def heights(seed: int, count: int, size: float = 1.0) -> list[float]:
    draw = random.Random(seed)
    return [size * draw.uniform(0.25, 1.0) * draw.choice((-1, 1)) for _ in range(count)]


@dataclass(frozen=True)
class Step:
    """A vector as bars, with a caption above and a note below. `shown` of its bars are in colour."""

    caption: str
    note: str
    bars: Sequence[float] = ()
    style: str = "value"
    shown: frozenset[int] | None = None
    table: bool = False

    def draw(self, x: float, y: float, *, words: bool = True) -> str:
        parts = []
        if words:
            parts += [
                centred(x + STEP_WIDTH / 2, y - 12, "step", self.caption),
                centred(x + STEP_WIDTH / 2, y + STEP_HEIGHT + 20, "note", self.note),
            ]
        middle = y + STEP_HEIGHT / 2
        if self.table:
            return "".join([*parts, *self._table(x, y)])
        if self.bars:
            parts.append(
                f'<line class="axis" x1="{x + 6:g}" x2="{x + STEP_WIDTH - 6:g}" y1="{middle:g}" y2="{middle:g}"/>'
            )
        pitch = (STEP_WIDTH - 16) / max(len(self.bars), 12)
        start = x + STEP_WIDTH / 2 - pitch * len(self.bars) / 2
        for place, bar in enumerate(self.bars):
            size = max(abs(bar) * STEP_HEIGHT / 2, 1)
            top = middle - size if bar > 0 else middle
            style = self.style if self.shown is None or place in self.shown else "faint"
            parts.append(
                f'<rect class="{style}" x="{start + place * pitch + pitch * 0.15:.1f}" y="{top:.1f}" '
                f'width="{pitch * 0.7:.1f}" height="{size:.1f}"/>'
            )
        return "".join(parts)

    def _table(self, x: float, y: float) -> list[str]:
        """A matrix of small cells, for directions and stacks."""
        draw = random.Random(3)
        rows, columns, cell = 4, 7, 10.5
        start = x + STEP_WIDTH / 2 - columns * cell / 2
        return [
            f'<rect class="{self.style}" opacity="{draw.uniform(0.15, 0.95):.2f}" x="{start + c * cell:.1f}" '
            f'y="{y + 2 + r * cell:.1f}" width="9" height="9" rx="1.5"/>'
            for r in range(rows)
            for c in range(columns)
        ]


def steps(x: float, y: float, row: Sequence[Step], *, words: bool = True) -> str:
    """Steps from left to right, with arrows between them."""
    pitch = STEP_WIDTH + 18
    drawn = [step.draw(x + place * pitch, y, words=words) for place, step in enumerate(row)]
    middle = y + STEP_HEIGHT / 2
    for place in range(len(row) - 1):
        end = x + (place + 1) * pitch
        drawn.append(arrow((end - 18, middle), (end, middle)))
    return "".join(drawn)


def width_of(row: Sequence[Step]) -> float:
    return len(row) * (STEP_WIDTH + 18) - 18


def picture(width: float, height: float, label: str, *parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{label}">\n<title>{label}</title>\n<style>{STYLE}</style>\n'
        + box(0.5, 0.5, width - 1, height - 1, "ground")
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


GRADIENT = heights(1, LONG)
SKETCH = heights(2, SHORT)


def noisy(bars: Sequence[float], seed: int, size: float = 0.45) -> list[float]:
    draw = random.Random(seed)
    return [max(-1.0, min(1.0, bar + draw.uniform(-size, size))) for bar in bars]


def clipped(bars: Sequence[float]) -> list[float]:
    return [0.55 * bar for bar in bars]


def device_row(seed: int) -> list[Step]:
    """The way of one device's gradient, as in the default strategy."""
    sketch = heights(seed + 1, SHORT)
    return [
        Step("gradient", "d numbers", heights(seed, LONG)),
        Step("sketch", "k numbers", sketch),
        Step("clip", "length at most C", clipped(sketch)),
        Step("noise", "secret", noisy(clipped(sketch), seed + 2), "noise"),
        Step("mask", "looks random", heights(seed + 3, SHORT), "mask"),
    ]


def round_picture() -> str:
    rows = [device_row(10), device_row(20), device_row(30)]
    inside = width_of(rows[0])
    parts = [
        box(20, 44, inside + 104, 284, "panel"),
        left(34, 68, "title", "On every device"),
    ]
    for place, (name, row) in enumerate(
        zip(("device 1", "device 2", "device n"), rows, strict=True)
    ):
        top = 112 + place * 68
        parts += [
            left(34, top + STEP_HEIGHT / 2 + 4, "note", name),
            steps(104, top, row, words=False),
        ]
    for place, step in enumerate(rows[0]):
        middle = 104 + place * (STEP_WIDTH + 18) + STEP_WIDTH / 2
        parts += [
            centred(middle, 98, "step", step.caption),
            centred(middle, 316, "note", step.note),
        ]
    edge = inside + 124
    adder = (edge + 82, 203)
    parts += [
        arrow(
            (edge - 14, 112 + 68 * place + STEP_HEIGHT / 2),
            (adder[0] - 30, adder[1] + 12 * (place - 1)),
        )
        for place in range(3)
    ]
    parts += [
        f'<circle class="panel" cx="{adder[0]}" cy="{adder[1]}" r="27"/>',
        f'<text x="{adder[0]}" y="{adder[1] + 9}" text-anchor="middle" font-size="26">+</text>',
        centred(adder[0], 120, "title", "Secure"),
        centred(adder[0], 138, "title", "aggregation"),
        centred(adder[0], 262, "note", "the masks"),
        centred(adder[0], 278, "note", "cancel: only"),
        centred(adder[0], 294, "note", "the sum shows"),
    ]
    server = adder[0] + 74
    total = Step("noisy sum", "k numbers", noisy(SKETCH, 5, 0.2), "noise")
    back = Step("desketch", "d numbers", noisy(GRADIENT, 6, 0.3))
    new = Step("new sketch", "next directions", table=True)
    parts += [
        arrow((adder[0] + 29, adder[1]), (server, adder[1])),
        box(server, 44, 330, 284, "panel"),
        left(server + 14, 68, "title", "On the server"),
        steps(server + 14, 112, [total, back], words=True),
        centred(server + 282, 131, "step", "optimiser"),
        centred(server + 282, 147, "step", "step"),
        arrow((server + 210, 135), (server + 238, 135)),
        new.draw(server + 14, 232),
        centred(server + 164, 246, "step", "accountant"),
        centred(server + 164, 264, "note", "epsilon so far"),
        centred(server + 274, 246, "step", "evaluation"),
        centred(server + 274, 264, "note", "test set"),
    ]
    right = server + 165
    parts += [
        arrow((right, 328), (right, 366), (300, 366), (300, 330)),
        centred(
            (right + 300) / 2,
            388,
            "step",
            "Broadcast: the k numbers of the sum, from which every device makes the next model and sketch itself",
        ),
        centred((right + 300) / 2, 406, "note", "(or the whole model: strategy.broadcast=full)"),
    ]
    label = "One round: devices sketch, clip, noise and mask; secure aggregation adds up; the server learns the sum"
    return picture(server + 350, 400, label, '<g transform="translate(0 -24)">', *parts, "</g>")


def strategy_picture(
    name: str,
    device: Sequence[Step],
    server: Sequence[Step],
    sent: tuple[str, str],
    place: str = "On the server",
) -> str:
    """What a client does and sends, and what the server does with it."""
    first, second = max(width_of(device) + 28, 130), width_of(server) + 28
    gap = 122
    width = 20 + first + gap + second + 20
    parts = [
        box(20, 20, first, 148, "panel"),
        left(34, 44, "title", "On a device"),
        steps(34, 82, device),
        arrow((20 + first + 6, 105), (20 + first + gap - 6, 105)),
        centred(20 + first + gap / 2, 92, "step", sent[0]),
        centred(20 + first + gap / 2, 126, "note", sent[1]),
        box(20 + first + gap, 20, second, 148, "panel"),
        left(34 + first + gap, 44, "title", place),
        steps(34 + first + gap, 82, server),
    ]
    return picture(width, 188, f"{name}: what a client sends and what the server does", *parts)


CLIP = Step("clip", "length at most C", clipped(GRADIENT))
NOISE = Step("noise", "secret", noisy(clipped(GRADIENT), 7, 0.5), "noise")
MASK = Step("mask", "looks random", heights(8, LONG), "mask")
SHORT_CLIP = Step("clip", "length at most C", clipped(SKETCH))
SHORT_NOISE = Step("noise", "secret", noisy(clipped(SKETCH), 9, 0.5), "noise")
SHORT_MASK = Step("mask", "looks random", heights(11, SHORT), "mask")
UPDATE = Step("local steps", "d numbers", GRADIENT)
NOISY_SUM = Step("sum", "noise of all", noisy(GRADIENT, 12, 0.35), "noise")
SHORT_SUM = Step("sum", "k numbers", noisy(SKETCH, 13, 0.2), "noise")
MEAN = Step("mean, step", "new model", noisy(GRADIENT, 14, 0.2))
KEPT = frozenset({2, 7, 11, 16})
TRUSTED = "On the server, which is trusted"

PICTURES = {
    "fedavg": strategy_picture(
        "FedAvg",
        [UPDATE],
        [
            Step("mean", "by examples", noisy(GRADIENT, 15, 0.1)),
            Step("step", "new model", noisy(GRADIENT, 14, 0.2)),
        ],
        ("d numbers", "nothing hidden"),
    ),
    "dp_fedavg": strategy_picture(
        "DP-FedAvg", [UPDATE, CLIP, NOISE, MASK], [NOISY_SUM, MEAN], ("d numbers", "masked")
    ),
    "flower": strategy_picture(
        "Flower's strategies",
        [Step("local epoch", "d numbers", GRADIENT), CLIP, NOISE, MASK],
        [
            NOISY_SUM,
            Step("mean", "as one reply", noisy(GRADIENT, 25, 0.2)),
            Step("FedYogi, ...", "new model", noisy(GRADIENT, 26, 0.2)),
        ],
        ("d numbers", "masked"),
    ),
    "dome": strategy_picture(
        "DOME",
        [
            Step("gradient", "d numbers", GRADIENT),
            Step("sketch", "k numbers", SKETCH),
            SHORT_CLIP,
            SHORT_NOISE,
            SHORT_MASK,
        ],
        [
            SHORT_SUM,
            Step("desketch, step", "d numbers", noisy(GRADIENT, 16, 0.3)),
            Step("learn", "directions", table=True),
        ],
        ("k numbers", "masked"),
    ),
    "fed_sgm": strategy_picture(
        "Fed-SGM",
        [
            UPDATE,
            Step("sketch", "from a seed", SKETCH),
            SHORT_CLIP,
            SHORT_NOISE,
            SHORT_MASK,
        ],
        [
            Step("sum", "b numbers", noisy(SKETCH, 13, 0.2), "noise"),
            Step("desketch", "same seed", noisy(GRADIENT, 17, 0.4)),
            MEAN,
        ],
        ("b numbers", "masked"),
    ),
    "csgm": strategy_picture(
        "L2-CSGM",
        [
            UPDATE,
            CLIP,
            Step("rotate", "all alike", heights(18, LONG, 0.5)),
            Step("keep a few", "secret choice", heights(18, LONG, 0.5), shown=KEPT),
        ],
        [
            Step("sum", "a few of each", heights(19, LONG, 0.6)),
            Step("add noise", "secret", noisy(heights(19, LONG, 0.6), 20), "noise"),
            MEAN,
        ],
        ("a seed, values", "not masked"),
        TRUSTED,
    ),
    "fedpcdp": strategy_picture(
        "FedPCDP",
        [
            Step("batch", "secret draw", GRADIENT),
            Step("project", "each example", SKETCH),
            SHORT_CLIP,
            Step("noise, step", "T times", noisy(clipped(SKETCH), 21, 0.5), "noise"),
            SHORT_MASK,
        ],
        [
            SHORT_SUM,
            Step("restore, step", "d numbers", noisy(GRADIENT, 22, 0.3)),
            Step("directions", "of public data", table=True),
        ],
        ("k numbers", "masked"),
    ),
    "fedceo": strategy_picture(
        "FedCEO",
        [Step("local epochs", "d numbers", GRADIENT), CLIP, NOISE, MASK],
        [
            NOISY_SUM,
            MEAN,
            Step("smooth", "some rounds", table=True),
        ],
        ("d numbers", "masked"),
    ),
    "sgmf": strategy_picture(
        "SGMF",
        [UPDATE, CLIP, Step("rotate", "all alike", heights(18, LONG, 0.5))],
        [
            Step("sum", "one of a pass", heights(23, LONG, 0.7)),
            Step("noise", "cancels later", noisy(heights(23, LONG, 0.7), 24), "noise"),
            MEAN,
        ],
        ("d numbers", "or a share"),
        TRUSTED,
    ),
}


def main() -> None:
    folder = Path(__file__).parent
    (folder / "round.svg").write_text(round_picture())
    for name, drawn in PICTURES.items():
        (folder / f"strategy_{name}.svg").write_text(drawn)


if __name__ == "__main__":
    main()
