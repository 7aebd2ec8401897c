"""The presets of `conf/experiment/` that are compared with each other: in panels of one unit, one adversary and one
kind of trust."""

from dataclasses import dataclass

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Preset:
    """A preset, what a table calls it, and the rate that is tuned: its key, and where the search begins at epsilon 2.

    With another epsilon the search begins at `start` times (epsilon / 2) to the power of `follows`: steps of SGD are
    as long as the noise allows, those of Adam are not.
    """

    name: str
    title: str
    start: float
    rate: str = "strategy.server.lr"
    follows: float = 1.0


@dataclass(frozen=True)
class Panel:
    """Presets that can be compared. The first is the full dimension, against which the others are held."""

    name: str
    title: str
    setting: str
    unit: str
    adversary: str  # whose epsilon the budget is
    trust: str
    presets: tuple[Preset, ...]

    @property
    def baseline(self) -> Preset:
        return self.presets[0]


PANELS = (
    Panel(
        name="server",
        title="No trust in the server: clients as units",
        setting="100 clients, all in every round, 20 rounds, 50 for `dome_public` (`conf/experiment/clients_100.yaml`)",
        unit="client",
        adversary="server",
        trust="in no server: secure aggregation holds against one that lies and works with a tenth of the clients",
        presets=(
            Preset("dp_fedavg", "DP-FedAvg, full dimension", 0.7),
            Preset("dome", "DOME", 0.7),
            Preset("dome_flat", "DOME, flat sketch", 0.7),
            Preset("dome_public", "DOME, public directions", 0.015, follows=0.0),
            Preset("fed_sgm", "Fed-SGM", 0.7),
            Preset("fedceo", "FedCEO", 0.7),
        ),
    ),
    Panel(
        name="trusted",
        title="A trusted server: clients as units",
        setting="1,000 clients, 50 in a round, two full passes, 40 rounds (`conf/experiment/clients_1000.yaml`)",
        unit="client",
        adversary="model",
        trust="in the server, which sees every upload; the budget binds all who see the models",
        presets=(
            Preset("dp_fedavg_trusted", "DP-FedAvg, full dimension", 0.03),
            Preset("csgm", "L2-CSGM, a tenth of the numbers", 0.03),
            Preset("sgmf", "SGMF", 0.06),
        ),
    ),
    Panel(
        name="examples",
        title="No trust in anybody else: examples as units",
        setting="10 clients, all in every round, 30 rounds of one noised step (`conf/experiment/examples_10.yaml`)",
        unit="example",
        adversary="server",
        trust="in nobody: each device alone brings all the noise that its examples need",
        presets=(
            Preset("dp_sgd", "FedAvg with DP-SGD, full dimension", 0.01, follows=0.0),
            Preset("fedpcdp", "FedPCDP", 0.01, follows=0.0),
        ),
    ),
)
PRESETS = {preset.name: preset for panel in PANELS for preset in panel.presets}
