"""kappa1 of a plain recurrent net on an accelerator: few launches, one synchronisation.

On the CPU a measurement is short of arithmetic, here of launches. So states and adjoints are
computed together, by doubling alone, as two chains y_{s+1} = N y_s of row vectors with one more
entry that carries the constant input:

    y_s = [h_s, c_s]    N = [[A^T, 0], [decay u, decay]]    c_s = decay^(s-1)    decay = 1 / root
    [y_1 .. y_b] N^b = [y_{b+1} .. y_2b]: two batched products for each doubling

In float64, whatever the weights' dtype: nothing needs to be checked before the next launch. The
numbers that the host needs (gamma^2, the growth of the states) are copied together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import read
from pathsgd.paths.match import PlainNet
from pathsgd.paths.recurrent import PlainKappa, by_name, next_root

_LEAST, _MOST = 1e-200, 1e200
"""gamma^2 / root^(T-1) is trusted between these; outside, the guess of the root is too far off."""


def kappa1(
    net: PlainNet,
    parameters: Mapping[str, Tensor],
    root: float | None = None,
    also: Sequence[Tensor] = (),
) -> PlainKappa:
    """kappa1 / gamma^2 of every parameter of a plain net; as `recurrent.kappa1`.

    also: other numbers on the device that shall be read together with these.
    """
    squares = _squares(net, parameters)
    A = squares[net.w_rec]
    guessed = root is not None
    u, v, embedded = _ends(net, squares)
    scale: float | Tensor = _perron_root(A, u, v) if root is None else root
    h, delta, fade = _sequences(A, u, v, net, 1 / scale)
    into = fade @ delta
    out = fade.flip(0) @ h if net.every_step else h[-1]
    total = v @ out
    rows = net.steps if net.every_step else 1
    if net.b_out is not None:
        total = torch.addcmul(total, squares[net.b_out].sum(), fade[-1], value=rows)
    last = h[-2:] @ v  # of one row where there is one step
    gamma_sq, *numbers = read(
        [total, *last, *([scale] if isinstance(scale, Tensor) else [])], also
    )  # the one wait
    others = numbers[len(numbers) - len(also) :]
    root = numbers[len(last)] if isinstance(scale, Tensor) else scale
    if guessed and not _LEAST < gamma_sq < _MOST:
        return kappa1(net, parameters, None, also)
    share = 1 / gamma_sq if gamma_sq > 0 else 1.0
    through = torch.linalg.vecdot(h, delta, dim=0)
    into, out, through = torch.stack([into, out, through]).mul_(share)
    recurrent = (delta[1:].t() @ h[:-1]).mul_(share / root)
    back = None if embedded is None else into @ squares[net.w_in]
    result, flow = by_name(net, recurrent, into, out, through, embedded, back)
    log_scale = (net.steps - 1) * math.log(root)
    if net.b_out is not None:
        result[net.b_out] = A.new_full((1,), rows * math.exp(-log_scale) * share)
    log_gamma_sq = math.log(gamma_sq) + log_scale if gamma_sq > 0 else -math.inf
    growth = root * numbers[1] / numbers[0] if net.steps > 1 and numbers[0] > 0 else 0.0
    following = next_root(root, growth)
    divisor = gamma_sq or 1.0
    return PlainKappa(result, flow, log_gamma_sq, h, delta, root, divisor, following, others)


def _squares(net: PlainNet, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The squared weights in float64, all of them in two operations."""
    others = [name for name in (net.b_out, net.embedding) if name is not None]
    names = [net.w_in, net.w_rec, *net.biases, net.w_out, *others]
    weights = [parameters[name].detach() for name in names]
    squares = [torch.empty_like(w, dtype=torch.float64) for w in weights]
    torch._foreach_copy_(squares, weights)
    torch._foreach_mul_(squares, squares)
    return dict(zip(names, squares))


def _ends(net: PlainNet, squares: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    """u, what enters each step, and v, what an output collects; the embedding's column sums."""
    embedded = None if net.embedding is None else squares[net.embedding].sum(0)
    u = squares[net.w_in].sum(1) if embedded is None else squares[net.w_in] @ embedded
    for bias in net.biases:
        u = u + squares[bias]
    return u, squares[net.w_out].sum(0), embedded


def _perron_root(A: Tensor, u: Tensor, v: Tensor, iterations: int = 8) -> Tensor:
    """`perron_root`, and at least 1; as a tensor, so that the host does not wait."""
    x, ratio = u / (v @ u), v.new_ones(())
    for _ in range(iterations):
        y = A @ x
        ratio = v @ y
        x = y / ratio
    return ratio.nan_to_num(1.0, posinf=1.0).clamp(min=1.0)


def _sequences(
    A: Tensor, u: Tensor, v: Tensor, net: PlainNet, decay: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled states and adjoints, (T, H) each, and decay^0 .. decay^(T-1)."""
    hidden, steps = A.shape[0], net.steps
    power = A.new_zeros(2, hidden + 1, hidden + 1)
    torch.mul(A.t(), decay, out=power[0, :hidden, :hidden])
    torch.mul(A, decay, out=power[1, :hidden, :hidden])
    torch.mul(u, decay, out=power[0, hidden, :hidden])
    if net.every_step:
        torch.mul(v, decay, out=power[1, hidden, :hidden])
    power[:, hidden, hidden].fill_(decay)
    y = A.new_empty(2, steps, hidden + 1)
    y[0, 0, :hidden], y[1, 0, :hidden] = u, v
    y[:, 0, hidden].fill_(1.0)
    done = 1
    while done < steps:
        count = min(done, steps - done)
        torch.bmm(y[:, :count], power, out=y[:, done : done + count])
        done += count
        if done < steps:
            power = torch.bmm(power, power)
    return y[0, :, :hidden], y[1, :, :hidden].flip(0), y[0, :, hidden]
