"""fedsketch: private federated learning with sketched gradients and secure aggregation, on Flower.

Everything is imported as `fedsketch.something`. Installed, the packages lie below this folder; in a checkout, and in the bundle that
Flower makes of one, they lie beside it (`client/`, `server/`, ...), where this file finds them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

_HERE = Path(__file__).parent
if not (_HERE / "client").is_dir():
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from fedsketch.server.loaded_model import LoadedModel


def load(folder: "str | Path", *, best: bool = False) -> "LoadedModel":
    """The trained model of a run as a torch module that takes examples as they are in the world; `best` takes the one that a validation
    found best instead of the last."""
    from fedsketch.server.loaded_model import load as load_model  # it imports torch

    return load_model(Path(folder), best=best)
