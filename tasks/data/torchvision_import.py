"""The only place that imports torchvision, because the import is slow and needs a workaround with a CPU build of
torch.

torchvision's published wheel is built for CUDA. With a CPU build of torch its C++ operators do not load, and the
import fails with "operator torchvision::nms does not exist". Declaring the missing operators first avoids that: data
sets need none of them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def datasets() -> Any:
    """Return the module torchvision.datasets."""
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _missing_operators()
    return importlib.import_module("torchvision.datasets")


@cache
def _missing_operators() -> torch.library.Library:
    """Declare the operators once. torch forgets the declarations when the last reference to their library is gone, so
    the cache keeps one."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(operator + _SIGNATURE)  # type: ignore[no-untyped-call]
    return library
