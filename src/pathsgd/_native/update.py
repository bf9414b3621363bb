"""The names before: what the core imports until it imports from the package itself."""

from pathsgd._native.operations.update import Operands as Operands, Update as Update  # noqa: I001
