"""The fused ReLU layer: a C++ kernel, its loader, and the pure-torch fallback with the same signature."""

from pathsgd._native.calls import Gradients, Needs, backward, forward, squared_sequences
from pathsgd._native.layout import Layout
from pathsgd._native.loader import Backend, load

__all__ = ["Backend", "Gradients", "Layout", "Needs", "backward", "forward", "load", "squared_sequences"]
