"""One sketch after another: first R^d -> R^m, then R^m -> R^k, S = S_inner S_outer."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sketching.fingerprint import Part
from sketching.sketch import Sketch


class ComposedSketch(Sketch):
    """outer(inner(x)). Its row norms are found from the columns, k calls of `adjoint`."""

    def __init__(self, inner: Sketch, outer: Sketch) -> None:
        if outer.shape[1] != inner.shape[0]:
            raise ValueError(
                f"The inner sketch gives {inner.shape[0]:,} numbers and the outer one takes "
                f"{outer.shape[1]:,}: make the outer one for d = {inner.shape[0]:,}."
            )
        super().__init__(outer.shape[0], inner.shape[1])
        self._inner = inner
        self._outer = outer

    @property
    def description_bytes(self) -> int:
        return self._inner.description_bytes + self._outer.description_bytes

    def _forward(self, rows: Tensor) -> Tensor:
        return self._outer.forward(self._inner.forward(rows))

    def _adjoint(self, rows: Tensor) -> Tensor:
        return self._inner.adjoint(self._outer.adjoint(rows))

    def _parts(self) -> Iterable[Part]:
        return (self._inner.fingerprint(), self._outer.fingerprint())
