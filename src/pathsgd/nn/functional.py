"""`rnn_relu`: torch's operation of that name, fused where possible, torch's own elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch.utils._device import DeviceContext

from pathsgd.kernels.layout import Layout
from pathsgd.nn.layer import ReluLayer

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
_FUSED_TYPES = (torch.float32, torch.float64)


def rnn_relu(*arguments: Any) -> tuple[Tensor, Tensor]:
    """A multi-layer Elman RNN with ReLU; same arguments and results as `torch._VF.rnn_relu`.

    rnn_relu(input, hx, flat_weights, has_biases, num_layers, dropout, training, bidirectional,
    batch_first) rnn_relu(data, batch_sizes, hx, flat_weights, has_biases, num_layers, dropout,
    training, bidirectional)

    Returns the last layer's states at every step, (T, B, D*H) or packed (R, D*H), and the last
    states of all layers, (L*D, B, H). A TorchFunctionMode, a torch.func transform, autocast, export
    and compilation see torch's operation.
    """
    torch_rnn_relu = torch._VF.rnn_relu  # type: ignore[attr-defined]
    if len(arguments) != 9:
        return torch_rnn_relu(*arguments)
    packed = isinstance(arguments[2], Tensor)
    batch_sizes: Tensor | None = None
    if packed:
        data, batch_sizes, hx, weights, biased, layers, dropout, training, bidirectional = arguments
        batch_first = False
    else:
        data, hx, weights, biased, layers, dropout, training, bidirectional, batch_first = arguments
    if not can_fuse(data, batch_sizes, hx, weights, biased, layers, bidirectional, batch_first):
        return torch_rnn_relu(*arguments)
    return run(
        data,
        batch_sizes,
        hx,
        weights,
        biased,
        layers,
        dropout if training else 0.0,
        bidirectional,
        batch_first,
    )


def run(
    data: Tensor,
    batch_sizes: Tensor | None,
    hx: Tensor | None,
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """rnn_relu on tensors that are known to fit; hx None stands for zeros."""
    if batch_first:
        data = data.transpose(0, 1)
    layout = (
        Layout(data.shape[0], data.shape[1]) if batch_sizes is None else Layout.packed(batch_sizes)
    )
    directions = 2 if bidirectional else 1
    each = directions * (4 if biased else 2)
    last_states = []
    for layer in range(layers):
        if layer > 0 and dropout:
            data = F.dropout(data, dropout, training=True)
        h0 = None if hx is None else hx[layer * directions : (layer + 1) * directions]
        data, last = ReluLayer.apply(
            data, h0, layout, biased, *weights[layer * each : (layer + 1) * each]
        )
        last_states.append(last)
    return (data.transpose(0, 1) if batch_first else data), (
        last_states[0] if layers == 1 else torch.cat(last_states)
    )


def can_fuse(
    data: Any,
    batch_sizes: Tensor | None,
    hx: Any,
    weights: Sequence[Any],
    biased: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> bool:
    """Whether `run` may take these.

    If not, torch computes them, or says what is wrong with them.
    """
    return (
        is_plain_arithmetic((data, *weights) if hx is None else (data, hx, *weights))
        and _weights_fit(weights, data.shape[-1], biased, layers, bidirectional)
        and _rows_fit(
            data,
            batch_sizes,
            hx,
            len(weights) // (4 if biased else 2),
            weights[1].shape[0],
            batch_first,
        )
    )


def is_plain_arithmetic(tensors: Sequence[Any]) -> bool:
    """Plain CPU tensors of one type; nothing watches, transforms or records operations."""
    if (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
        or (torch.overrides.has_torch_function(tensors) and not _only_device_modes())
    ):
        return False
    dtype = getattr(tensors[0], "dtype", None)
    if dtype not in _FUSED_TYPES:
        return False
    for t in tensors:
        if (
            type(t) not in PLAIN_TENSORS
            or t.dtype != dtype
            or not t.is_cpu
            or t.layout != torch.strided
            or t.is_neg()
        ):
            return False
    return True


def _only_device_modes() -> bool:
    # torch.set_default_device is a mode too, one that only concerns the creation of tensors.
    depth = torch._C._len_torch_function_stack()
    return depth > 0 and all(
        isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in range(depth)
    )


def _weights_fit(
    weights: Sequence[Tensor], inputs: int, biased: bool, layers: int, bidirectional: bool
) -> bool:
    directions, each = (2 if bidirectional else 1), (4 if biased else 2)
    if len(weights) != layers * directions * each:
        return False
    hidden = weights[1].shape[0]
    for i in range(0, len(weights), each):
        width = inputs if i < each * directions else hidden * directions
        if weights[i].shape != (hidden, width) or weights[i + 1].shape != (hidden, hidden):
            return False
        if biased and not (weights[i + 2].shape == weights[i + 3].shape == (hidden,)):
            return False
    return True


def _rows_fit(
    data: Tensor,
    batch_sizes: Tensor | None,
    hx: Tensor | None,
    states: int,
    hidden: int,
    batch_first: bool,
) -> bool:
    """data is (T, B, I), (B, T, I) or packed (R, I), not empty; hx is (states, B, H) or None."""
    if data.dim() != (3 if batch_sizes is None else 2) or data.numel() == 0:
        return False
    if batch_sizes is None:
        batch = data.shape[0 if batch_first else 1]
    else:
        sizes = batch_sizes.tolist()
        batch = sizes[0]
        if sum(sizes) != data.shape[0] or sizes != sorted(sizes, reverse=True) or sizes[-1] < 1:
            return False
    return hx is None or hx.shape == (states, batch, hidden)
