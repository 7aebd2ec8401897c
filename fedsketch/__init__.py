"""fedsketch: private federated learning with sketched gradients and secure aggregation, on Flower.

Everything is imported as `fedsketch.something`. Installed, the packages lie below this folder; in a checkout, and in the bundle that
Flower makes of one, they lie beside it (`client/`, `server/`, ...), where this file finds them.
"""

from pathlib import Path

_HERE = Path(__file__).parent
if not (_HERE / "client").is_dir():
    __path__.append(str(_HERE.parent))
