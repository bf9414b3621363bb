"""kappa1 of a plain recurrent net in closed form: [embedding ->] RNN layer -> linear output.

The commonest model of this field gets a path of its own: with A = W_rec^2, u = what enters a step,
v = what an output step collects (column sums of W_out^2), both sequences of states and their sums
come from `kernels.plain_sums`, and

    kappa1(W_rec) = sum_s delta_{s+1} h_s^T
    kappa1(W_in) = (sum_s delta_s) e^T        kappa1(b) = sum_s delta_s
    kappa1(W_out) = 1 (sum over output steps h_s)^T

e is 1, or the column sums of the squared embedding. Matrices whose kappa is constant along a
dimension keep size 1 there. `paths.kappa.Kappa` is the general route and this one's oracle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import perron_root
from pathsgd.arithmetic.second_order import second_order_sum
from pathsgd.kernels.plain_sums import PlainSums, plain_sums
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.squared_sequences import squared_sequences
from pathsgd.paths.match import PlainNet


@dataclass(frozen=True)
class PlainKappa:
    """kappa1 / gamma^2 of every parameter, log gamma^2, and what kappa2 needs."""

    kappa1: dict[str, Tensor]
    flow: dict[str, Tensor]
    """Path flow through the units of a parameter's rows (an embedding's columns), by its name."""
    log_gamma_sq: float
    h: Tensor
    delta: Tensor
    root: float
    divisor: float
    next_root: float
    """The growth of the states in the last step: the root to start from next time."""
    also: Sequence[float] = ()
    """Other numbers that were read from the device with these."""


# Rounding errors add up from step to step; measured, float32 keeps to 1e-5 of each entry for this
# many.
FLOAT32_STEPS = 1024


def kappa1(
    net: PlainNet,
    parameters: Mapping[str, Tensor],
    root: float | None = None,
    *,
    exact: bool = True,
) -> PlainKappa:
    """kappa1 / gamma^2 of every parameter of a plain net, constant dimensions kept at size 1.

    root: a guess of the Perron root of A, `next_root` of the last measurement; only a scale, so it
        need not be exact.
    exact: in float64; otherwise in float32 where the weights are and `is_certain` vouches for the
        result.
    """
    embedded = None
    if net.embedding is not None:
        embedded = squared_products(parameters[net.embedding], into=False)[1]
    w_rec, guessed = parameters[net.w_rec], root is not None
    if root is None:
        A = w_rec.detach().to(torch.float64, copy=True).square_()
        root = max(1.0, perron_root(A, *_ends(net, parameters, embedded)))
    sums = None
    if not exact and w_rec.dtype == torch.float32 and net.steps <= FLOAT32_STEPS:
        sums = relative_sums(net, parameters, embedded, root, torch.float32)
        if not is_certain(sums):
            sums = _balanced_sums(net, parameters, embedded, root, sums)
    if sums is None:
        sums = relative_sums(net, parameters, embedded, root, torch.float64)
    gamma_sq = sums.gamma_sq
    if guessed and not 1e-200 < gamma_sq < 1e200:
        return kappa1(net, parameters, None, exact=exact)  # the guess was too far off
    into, out, through = sums.vectors.unbind()
    back = None
    if embedded is not None:
        back = squared_products(parameters[net.w_in], None, into, into=False)[1]
    result, flow = by_name(net, sums.recurrent, into, out, through, embedded, back)
    log_scale, divisor = (net.steps - 1) * math.log(root), gamma_sq or 1.0
    if net.b_out:
        rows = net.steps if net.every_step else 1
        share = rows * math.exp(-log_scale) / divisor
        result[net.b_out] = torch.full((1,), share, dtype=torch.float64)
    log_gamma_sq = math.log(gamma_sq) + log_scale if gamma_sq > 0 else -math.inf
    following = next_root(root, root * sums.growth)
    return PlainKappa(result, flow, log_gamma_sq, sums.h, sums.delta, root, divisor, following)


def by_name(
    net: PlainNet,
    recurrent: Tensor,
    into: Tensor,
    out: Tensor,
    through: Tensor,
    embedded: Tensor | None,
    back: Tensor | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """kappa1 and flow by parameter. back: the derivative in the embedding's column sums."""
    kappa = {net.w_rec: recurrent, net.w_out: out[None, :], **dict.fromkeys(net.biases, into)}
    flow = {net.w_rec: through}
    if embedded is None or back is None or net.embedding is None:
        kappa[net.w_in] = into[:, None]
    else:
        kappa[net.w_in] = torch.outer(into, embedded)
        kappa[net.embedding], flow[net.embedding] = back[None, :], embedded * back
    return kappa, flow


def next_root(root: float, growth: float) -> float:
    """The root to start from next time. growth: of the states in the last step."""
    return max(1.0, growth) if 0 < growth < math.inf else root


@torch.no_grad()
def _ends(
    net: PlainNet, parameters: Mapping[str, Tensor], embedded: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What enters the units at each step, and what an output collects; (H,) each, float64."""
    u, _ = squared_products(parameters[net.w_in], embedded, out=False)
    _, v = squared_products(parameters[net.w_out], into=False)
    assert u is not None and v is not None
    return sum((parameters[bias].double().square() for bias in net.biases), u), v


def relative_sums(
    net: PlainNet,
    parameters: Mapping[str, Tensor],
    embedded: Tensor | None,
    root: float,
    dtype: torch.dtype,
) -> PlainSums:
    """Sums over the squared network's sequences, in `dtype`."""
    w_in, w_rec, w_out = (parameters[name] for name in (net.w_in, net.w_rec, net.w_out))
    biases = [parameters[name] for name in net.biases]
    b_out = None if net.b_out is None else parameters[net.b_out]
    with torch.no_grad():
        return plain_sums(
            w_in, embedded, w_rec, biases, w_out, b_out, net.steps, net.every_step, 1 / root, dtype
        )


@torch.no_grad()
def _balanced_sums(
    net: PlainNet,
    parameters: Mapping[str, Tensor],
    embedded: Tensor | None,
    root: float,
    known: PlainSums,
) -> PlainSums | None:
    """Sums in float32 with balanced units; None if they do not fit float32 either.

    By powers of two, which round nothing: a net whose weights are badly scaled has the sums of its
    balanced twin in every bit, where float64 would round others.
    """
    into, _, through = known.vectors.unbind()
    ratio = into.square() / through
    ratio = torch.where((ratio > 0) & ratio.isfinite(), ratio, 1.0)
    a = ratio.pow(0.25).log2().round().exp2().to(torch.float32)
    scaled = dict(parameters)
    for name in (net.w_in, net.w_rec, *net.biases):
        scaled[name] = parameters[name] * (a if parameters[name].dim() == 1 else a[:, None])
    scaled[net.w_rec] = scaled[net.w_rec] / a
    scaled[net.w_out] = parameters[net.w_out] / a
    sums = relative_sums(net, scaled, embedded, root, torch.float32)
    if not is_certain(sums):
        return None
    squares = a.double().square()
    recurrent = sums.recurrent.double() * squares[:, None] / squares
    tiny, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    if net.steps > 1 and not bool(((recurrent >= tiny) & (recurrent <= largest)).all()):
        return None
    vectors = torch.stack([sums.vectors[0] * squares, sums.vectors[1] / squares, sums.vectors[2]])
    h, delta = sums.h.double() / squares, sums.delta.double() * squares
    return sums._replace(h=h, delta=delta, vectors=vectors, recurrent=recurrent.to(torch.float32))


def is_certain(sums: PlainSums) -> bool:
    """Whether no sum depends on a number outside the range of its dtype.

    All terms are nonnegative. What underflows is below `tiny` times the largest factor it meets,
    and may grow on its
    way as entries differ: a result far above that many such losses has not lost anything.
    """
    steps, hidden = sums.h.shape
    tiny = torch.finfo(sums.h.dtype).tiny
    return sums.largest < tiny**-0.5 and sums.least > 1e12 * steps * hidden * tiny * sums.largest


def kappa2(net: PlainNet, parameters: Mapping[str, Tensor], first: PlainKappa) -> dict[str, Tensor]:
    """kappa2 / gamma^2 of the recurrent matrix, the only parameter a path uses twice: 4 A .* S."""
    A = parameters[net.w_rec].detach().double().square().div_(first.root)
    tolerance = 1e-5 if first.h.dtype == torch.float32 else 1e-6
    # From h_1 on: h_0 = 0 is in no sum.
    total = second_order_sum(
        A, first.h[:-1], first.delta[1:], adjoint=not net.every_step, tolerance=tolerance
    )
    return {net.w_rec: total.mul_(A).mul_(4 / first.root / first.divisor)}


# ---- States of the squared recurrence of one layer, in a scale in which nothing overflows.


def sequences(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, *, every_step: bool, root: float | None = None
) -> tuple[Tensor, Tensor, float]:
    """Scaled states h and adjoints delta of the squared recurrence, and the root r.

    weight: W_rec (H, H); u: what enters each step (H,); v: what each output step collects (H,). Row
    s-1 of the first is r^-(s-1) h_s, row s-1 of the second is r^-(T-s) delta_s. root: a good guess
    of r, from an earlier call.
    """
    if root is None:
        root = max(1.0, perron_root(weight.to(u.dtype).square(), u, v))
    return (*squared_sequences(weight, u, v, steps, every_step, 1 / root), root)
