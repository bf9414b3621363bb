"""The fused ReLU layer: a C++ kernel, its loader, and the pure-torch fallback with the same signature."""

from pathsgd._native.calls import Gradients, Needs, backward, forward
from pathsgd._native.layout import Layout
from pathsgd._native.loader import Backend, load
from pathsgd._native.output_loss import can_compute_cross_entropy, cross_entropy
from pathsgd._native.squared import PlainSums, plain_sums, squared_products, squared_sequences
from pathsgd._native.update import inverse_root, spectral_norm

__all__ = [
    "Backend",
    "Gradients",
    "Layout",
    "Needs",
    "PlainSums",
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
]
