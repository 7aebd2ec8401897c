"""What the owner of a device allows: a TOML file that no message can change. Every key has a default, so the file may
hold only what differs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedsketch.client.guard.ledger_state import Budget
from fedsketch.client.guard.owners_file import OwnersFile, key
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.secagg import ProtocolName


@dataclass(frozen=True)
class Policy(OwnersFile):
    """The limits that the owner of a device sets."""

    what: ClassVar[str] = "policy"
    head: ClassVar[str] = (
        "What this device allows. No message can change it; edit it as you like, it is read anew for every message."
    )

    smallest_cohort: int = key(
        20,
        "Fewest clients in a sum that is released, after all dropouts that the round tolerates (in each group, if a "
        "round\nhas groups).",
    )
    protocols: tuple[str, ...] = key(
        tuple(name.value for name in ProtocolName),
        'How sums may be made: "pairwise" (five round trips, all sign the survivor list), "two_trips" (two round trips,'
        "\nfewer bytes; its proof is not peer reviewed, and the ledger alone keeps this device from answering twice).",
    )
    largest_drops: float = key(
        0.2, "Largest share of a sum's clients that may drop out; the noise of the others must do."
    )
    largest_losses: float = key(
        0.1,
        "Largest share of a sum's clients that may be lost after they sent their vector (two_trips only). They are in\n"
        "the sum. The fewer losses a round tolerates, the more devices must answer before it is known.",
    )
    assumed_colluders: float = key(
        0.1,
        "Clients of a cohort that may work with the server: a share below 1, or a number from 1 on. A round that\n"
        "assumes fewer (secagg.colluders) is refused: its thresholds and its noise would not hold against so many. The "
        "server\nchooses the cohort, and says how many clients it has. A share is a share of that number: it does not "
        "hold in a\nsmall cohort into which the server puts all who work with it. A number holds in every cohort.",
    )
    largest_clip: float = key(10.0, "Largest L2 norm that one unit's contribution is clipped to.")
    rings: tuple[int, ...] = key(
        (), "Sizes of the ring of integers that are allowed, in bits. Empty: all, from 16 to 64."
    )
    smallest_noise: float = key(
        1.0,
        "Smallest noise multiplier of one round: standard deviation of the noise that the honest clients bring if "
        "all\ntolerated drops happen, over what one unit can change in the sum. Where noise is inside of local "
        "training: of this\ndevice alone, in one local step.",
    )
    unit: str = key(
        "client",
        'What epsilon protects: "client" (all data of this device) or "example" (each of its examples).',
    )
    epsilon: float = key(
        8.0,
        "Budget over the life of this device, all runs together, against the server and the assumed colluders, under\n"
        "zero-out adjacency. A round that could exceed it is refused. inf: no bound.",
    )
    delta: float = key(1e-5, "Delta of that budget: well below one over the number of units.")
    most_rounds: int = key(10_000, "Most rounds over the life of this device.")
    largest_model: int = key(
        10_000_000, "Most parameters of a model, and most numbers of an upload or of made-up data."
    )
    most_local_steps: int = key(10_000, "Most steps, or passes over the data, of one round.")
    plugins: str = key(
        "",
        "Strategies, tasks, models, feature maps and data sets of installed packages that a run may use, with commas\n"
        "between their names. Those of fedsketch itself are always allowed.",
    )
    reply_seconds: float = key(
        0.0,
        "Seconds after which a reply to a train message leaves, though it is ready sooner: how long training takes\n"
        "may depend on the data, and the server sees it. A reply that needs longer leaves after two, three, ... times\n"
        "as many seconds, and the node's log says so. 0: replies leave at once.",
    )
    witness: str = key(
        "",
        "A file in a second place, such as another disk, that holds how long the ledger is. An older ledger, as of a\n"
        "backup, is then refused. fedsketch-enroll begins the file. Empty: an older ledger is not noticed.",
    )
    allow_semi_honest: bool = key(
        False,
        "Whether rounds without signed survivor lists (secagg=semi_honest) are allowed. They protect against a server\n"
        "that looks, not against one that lies.",
    )
    allow_unmasked: bool = key(
        False,
        "Whether replies may leave without masks (secagg=none). Nobody judges their clip or noise, so this needs\n"
        "epsilon = inf and is for demonstrations with public data only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need(
            self.smallest_cohort >= 2, "smallest_cohort is at least 2: a sum of one is no sum."
        )
        for name in ("largest_drops", "largest_losses"):
            self.need(0 <= getattr(self, name) < 1, f"{name} is a share: at least 0 and below 1.")
        self.need(
            0 <= self.assumed_colluders < 1
            or (self.assumed_colluders >= 1 and self.assumed_colluders.is_integer()),
            "assumed_colluders is a share from 0 and below 1, or a whole number of clients.",
        )
        self.need(
            len(self.protocols) > 0 and set(self.protocols) <= set(ProtocolName),
            f"protocols holds one at least of {', '.join(ProtocolName)}.",
        )
        self.need(0 < self.largest_clip < math.inf, "largest_clip is positive and finite.")
        self.need(
            all(16 <= bits <= 64 for bits in self.rings),
            "rings holds sizes from 16 to 64 bits.",
        )
        self.need(0 <= self.smallest_noise < math.inf, "smallest_noise is finite and not negative.")
        self.need(self.unit in list(Unit), 'unit is "client" or "example".')
        self.need(self.epsilon > 0, "epsilon is positive.")
        self.need(0 < self.delta < 1, "delta lies strictly between 0 and 1.")
        self.need(self.most_rounds >= 0, "most_rounds is not negative.")
        self.need(self.largest_model >= 1, "largest_model is at least 1.")
        self.need(self.most_local_steps >= 1, "most_local_steps is at least 1.")
        self.need(0 <= self.reply_seconds < math.inf, "reply_seconds is finite and not negative.")
        self.need(
            not self.witness or Path(self.witness).is_absolute(),
            "witness is empty, or the path of a file from the root on.",
        )
        self.need(
            not self.allow_unmasked or self.epsilon == math.inf,
            "allow_unmasked lets out what no budget can count: set epsilon = inf as well, or allow_unmasked = false.",
        )

    @property
    def colluders(self) -> int | float:
        """The assumed colluders: a share of a cohort, or their number."""
        number = self.assumed_colluders
        return number if number < 1 else int(number)

    @property
    def allowed_plugins(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.plugins.split(",") if name.strip())

    @property
    def witness_file(self) -> Path | None:
        return Path(self.witness) if self.witness else None

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta, self.most_rounds)
