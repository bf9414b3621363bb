"""The mean of logarithms."""

from __future__ import annotations

from torch import Tensor


def mean_log(values: Tensor) -> float:
    return float(values.double().log().mean())
