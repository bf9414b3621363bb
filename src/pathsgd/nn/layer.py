"""One layer of a ReLU RNN, in one or both directions, as a node of autograd's graph.

    h_t = relu(W_in x_t + b_in + W_rec h_before(t) + b_rec)

The states of every step and each sequence's last state are two outputs with a gradient path of
their own: a loss on the last state alone never builds a (T, B, H) gradient of zeros.

Shapes: T steps, B sequences, I inputs, H units, D = 1 or 2 directions, R = all rows of a packed
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.layout import Layout
from pathsgd.kernels.rnn_backward import Needs, rnn_backward
from pathsgd.kernels.rnn_forward import rnn_forward
from pathsgd.nn.unrolled import unrolled_layer


class ReluLayer(torch.autograd.Function):
    """(x, h0, layout, biased, *weights) -> (states, last states).

    x: (T, B, I), or (R, I) when packed; h0: (D, B, H), or None for zeros; weights: for each
    direction w_in (H, I), w_rec (H, H) and, if biased, b_in (H) and b_rec (H); states: (T, B, D*H)
    or (R, D*H); last states: (D, B, H).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h0: Tensor | None, layout: Layout, biased: bool, *weights: Tensor
    ) -> Any:
        directions = _by_direction(weights, biased)
        hidden = weights[0].shape[0]
        states = x.new_empty(*x.shape[:-1], len(directions) * hidden)
        last = x.new_empty(len(directions), layout.batch, hidden)
        x_dense, h0_dense = _dense([x, h0])
        for d, own_weights in enumerate(directions):
            rnn_forward(x_dense, h0_dense, _dense(own_weights), layout, d, states, last)
        ctx.save_for_backward(x, h0, states, *weights)
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.biased = layout, biased
        return states, last

    @staticmethod
    def backward(ctx: Any, d_states: Tensor | None, d_last: Tensor | None) -> Any:  # type: ignore[override]
        if d_states is None and d_last is None:
            return (None,) * len(ctx.needs_input_grad)
        if (
            torch.is_grad_enabled()
            or is_batch_of_gradients(d_states)
            or is_batch_of_gradients(d_last)
        ):
            return _backward_unrolled(ctx, d_states, d_last)
        x, h0, states, *weights = _dense(ctx.saved_tensors)
        d_states, d_last = _dense([d_states, d_last])
        needs_x, needs_h0, _, _, *needs_weights = ctx.needs_input_grad
        d_x, d_h0, d_weights = [], [], []
        for d, own_weights in enumerate(_by_direction(weights, ctx.biased)):
            needs_w_in, needs_w_rec, *needs_biases = _by_direction(needs_weights, ctx.biased)[d]
            needs = Needs(needs_x, needs_h0, needs_w_in, needs_w_rec, any(needs_biases))
            own: Any = rnn_backward(
                d_states, d_last, x, h0, states, own_weights, ctx.layout, d, needs
            )
            d_x.append(own.x)
            d_h0.append(own.h0)
            d_weights += [own.w_in, own.w_rec]
            if ctx.biased:  # both biases have the same gradient, but each is its owner's to change
                d_weights += [own.bias, None if own.bias is None else own.bias.clone()]
        total = (d_x[0] if len(d_x) == 1 else d_x[0] + d_x[1]) if needs_x else None
        return total, torch.stack(d_h0) if needs_h0 else None, None, None, *d_weights


def _backward_unrolled(
    ctx: Any, d_states: Tensor | None, d_last: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The same gradients from the layer unrolled; they can be differentiated in turn."""
    x, h0, _, *weights = ctx.saved_tensors
    needed = [*ctx.needs_input_grad[:2], *ctx.needs_input_grad[4:]]
    with torch.enable_grad():
        # Views, so that a weight tied into several places gets each place's gradient by itself.
        tensors = [t.view_as(t) if need else t for t, need in zip([x, h0, *weights], needed)]
        outputs = unrolled_layer(
            tensors[0], tensors[1], ctx.layout, _by_direction(tensors[2:], ctx.biased)
        )
    pairs = [(out, d_out) for out, d_out in zip(outputs, (d_states, d_last)) if d_out is not None]
    gradients = iter(
        torch.autograd.grad(
            [out for out, _ in pairs],
            [t for t, need in zip(tensors, needed) if need],
            [d_out for _, d_out in pairs],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    d_x, d_h0, *d_weights = [next(gradients) if need else None for need in needed]
    return d_x, d_h0, None, None, *d_weights


def is_batch_of_gradients(gradient: Tensor | None) -> bool:
    """Whether vmap, old or new, hides a dimension of this tensor from us."""
    functorch = torch._C._functorch
    return gradient is not None and (
        functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)
    )


def _by_direction(weights: Sequence[Any], biased: bool) -> list[Sequence[Any]]:
    each = 4 if biased else 2
    return [weights] if len(weights) == each else [weights[:each], weights[each:]]


def _dense(tensors: Sequence[Tensor | None]) -> Any:
    return [t if t is None or t.is_contiguous() else t.contiguous() for t in tensors]
