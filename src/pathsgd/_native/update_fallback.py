"""The names before: what the core imports until it imports from the package itself."""

from pathsgd._native.operands import ADAM, GRADIENT, MOMENTUM, NESTEROV, UpdateRule as Rule  # noqa: F401, I001
