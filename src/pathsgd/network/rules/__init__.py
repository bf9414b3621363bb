"""How each torch operation carries paths: one rule each, one table."""

from pathsgd.network.rules import (
    convolution,
    linear,
    lookup,
    normalization,
    pointwise,
    pooling,
    recurrent,
    refused,
    shape,
    sums,
)  # fmt: skip
from pathsgd.network.rules.base import REFUSED, RULES, Refusal, Rule
from pathsgd.network.tape import Kind

__all__ = ["REFUSED", "RULES", "Kind", "Refusal", "Rule"]

# Imported for what they register.
_MODULES = (
    convolution,
    linear,
    lookup,
    normalization,
    pointwise,
    pooling,
    recurrent,
    refused,
    shape,
    sums,
)
