"""The fused ReLU layer: a C++ kernel, its loader, and the pure-torch fallback with the same signature."""

from pathsgd._native.calls import Gradients, Needs, backward, forward
from pathsgd._native.layout import Layout, walk
from pathsgd._native.loader import Backend, load
from pathsgd._native.output_loss import can_compute_cross_entropy, cross_entropy
from pathsgd._native.squared import PlainSums, plain_sums, squared_products, squared_sequences
from pathsgd._native.update import Operands, Update, inverse_root, spectral_norm
from pathsgd._native.update_fallback import ADAM, GRADIENT, MOMENTUM, NESTEROV, UpdateRule

__all__ = [
    "ADAM",
    "GRADIENT",
    "MOMENTUM",
    "NESTEROV",
    "Backend",
    "Gradients",
    "Layout",
    "Needs",
    "Operands",
    "PlainSums",
    "Update",
    "UpdateRule",
    "backward",
    "can_compute_cross_entropy",
    "cross_entropy",
    "forward",
    "inverse_root",
    "load",
    "plain_sums",
    "spectral_norm",
    "squared_products",
    "squared_sequences",
    "walk",
]
