"""How much longer than the update a random sketch of it may be.

A device clips the row that it uploads, as its last step, whatever was done before: that clip is the sensitivity. Where the update was
clipped to C before sketching (`strategy.clip=before`), the last clip must leave its sketch alone, so it stands at C times `stretch`:

- gaussian: R x of a fixed x has the squared norm |x|^2 chi^2_b / b. The stretch is where that is exceeded with probability 1e-20. Who
  knows R can find an x that R makes longer, by up to 1 + sqrt(d/b); such an update is cut, so the bound holds for every x and every R.
- hadamard: sqrt(m/k) times a part of a rotation: that is the largest stretch there is.
- identity: 1.
- count sketch: up to sqrt(d), if all coordinates meet in one bucket. Not offered.
"""

import math

from fedsketch.conf import Config
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig
from fedsketch.strategies.shared.sketch_size import sketch_size

_CUT = 1e-20  # probability that a row of a Gaussian sketch is longer than the last clip


def stretch(config: Config, d: int) -> float:
    """The norm to which an uploaded row is clipped, over privacy.clip."""
    settings = config.strategy
    if not isinstance(settings, FedSgmConfig) or settings.clip != "before":
        return 1.0
    size = sketch_size(settings.sketch_dim, d)
    if settings.sketch == "gaussian":
        from scipy import stats  # half a second

        return math.sqrt(float(stats.chi2.isf(_CUT, size)) / size)
    if settings.sketch == "hadamard":
        return math.sqrt((1 << (d - 1).bit_length()) / size)
    return 1.0
