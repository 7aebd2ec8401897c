"""What a small run is: the overrides that tests begin with."""

LARGER = ("data.shape=[1,2,30]", "data.classes=10")  # 600 weights, sketched; 10 biases, whole
# The integers and the integer noise of secure aggregation, without its masks.
UNMASKED = ["secagg=none", "secagg.noise=skellam", "privacy.against=model"]
_DATA = "data=synthetic data.examples=60 data.test_examples=20 data.shape=[1,2,3] data.classes=3"


def small(*overrides: str, clients: int = 6) -> list[str]:
    """A few rounds of a tiny model on few examples, with all clients in each round; the rest as in conf/.

    An argument is an override, or several with spaces between them. They hold against those of this module, whose keys
    of the data are left out if another data set is chosen.
    """
    own = " ".join(overrides).split()
    others = any(one.startswith("data=") and one != "data=synthetic" for one in own)
    cohort = f"clients.total={clients} clients.per_round={clients} clients.timeout=60"
    run = f"strategy=dp_fedavg model=logistic device=cpu rounds=4 {cohort}"
    return [*("" if others else _DATA).split(), *run.split(), *own]


def plain(*overrides: str, clients: int = 6) -> list[str]:
    """Like `small`, without secure aggregation, and with a budget against those who see the models."""
    return small("secagg=none privacy.against=model", *overrides, clients=clients)
