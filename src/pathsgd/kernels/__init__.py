"""Operations by a C++ kernel where there is one and it may have the tensors, by torch otherwise, with the same results.

`operations/` decides between `src/` (C++) and `fallback/` (torch); a file of the same name in each is one operation.
loader.py finds the kernel, abi.py is the border to it, layout.py says how sequences lie in memory.
"""

from pathsgd.kernels.correct_direction import correct_direction
from pathsgd.kernels.cross_entropy import can_compute_cross_entropy, cross_entropy
from pathsgd.kernels.flow_sides import flow_sides
from pathsgd.kernels.follow_directions import follow_directions
from pathsgd.kernels.layout import Layout, walk
from pathsgd.kernels.linear_sweep import linear_sweep
from pathsgd.kernels.loader import Backend, load
from pathsgd.kernels.mean_log import mean_log
from pathsgd.kernels.narrow import narrow
from pathsgd.kernels.operands import (
    ADAM,
    GRADIENT,
    MOMENTUM,
    NESTEROV,
    Operands,
    UpdateRule,
    compute_dtype,
)
from pathsgd.kernels.plain_sums import PlainSums, plain_sums
from pathsgd.kernels.rank_one_sum import rank_one_sum
from pathsgd.kernels.recurrent_gradient import recurrent_gradient
from pathsgd.kernels.rnn_backward import Gradients, Needs, rnn_backward
from pathsgd.kernels.rnn_forward import rnn_forward
from pathsgd.kernels.row_lengths import row_lengths
from pathsgd.kernels.spectral_norm import spectral_norm
from pathsgd.kernels.squared_convolution import (
    Sliding,
    squared_convolution,
    squared_convolution_backward,
)
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.squared_sequences import squared_sequences
from pathsgd.kernels.squares import squares
from pathsgd.kernels.stack_sums import StackSums, stack_sums
from pathsgd.kernels.update import Update
from pathsgd.kernels.whiten import Lines, Outer, Whiten, Whitening, dense, whiten, whiten_and_keep

__all__ = [
    "ADAM",
    "GRADIENT",
    "MOMENTUM",
    "NESTEROV",
    "Backend",
    "Gradients",
    "Layout",
    "Lines",
    "Needs",
    "Operands",
    "Outer",
    "PlainSums",
    "Sliding",
    "StackSums",
    "Update",
    "UpdateRule",
    "Whiten",
    "Whitening",
    "can_compute_cross_entropy",
    "compute_dtype",
    "correct_direction",
    "cross_entropy",
    "dense",
    "flow_sides",
    "follow_directions",
    "linear_sweep",
    "load",
    "mean_log",
    "narrow",
    "plain_sums",
    "rank_one_sum",
    "recurrent_gradient",
    "rnn_backward",
    "rnn_forward",
    "row_lengths",
    "spectral_norm",
    "squared_convolution",
    "squared_convolution_backward",
    "squared_products",
    "squared_sequences",
    "squares",
    "stack_sums",
    "walk",
    "whiten",
    "whiten_and_keep",
]
