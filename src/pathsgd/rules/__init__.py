"""How each torch operation carries paths: one rule each, one table."""

from pathsgd.rules import linear, normalization, pointwise, pooling, recurrent, refused, shape
from pathsgd.rules.base import REFUSED, RULES, Kind, Refusal, Rule

__all__ = ["REFUSED", "RULES", "Kind", "Refusal", "Rule"]

_MODULES = (linear, normalization, pointwise, pooling, recurrent, refused, shape)  # imported for what they register
