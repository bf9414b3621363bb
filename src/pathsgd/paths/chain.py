"""gamma^2 of a chain of matrices, x -> W1 -> W2 -> ..., where nothing else is wanted.

    h = W^2 h + b^2 layer by layer, from ones     gamma^2 = sum h     elementwise squares, one row h

A matrix may be used turned round (h W), and again: a tied autoencoder. What no rescaling changes
has K = 1 whatever its kappa (metric/geometry.py), so of such a net gamma^2 is all that a
measurement finds, and a walk through its recording with scales for every number would take most of
the time. `network.squared.Evaluation` is the general route, and the oracle of this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.kernels.squared_products import squared_products
from pathsgd.network.rules.pointwise import Same
from pathsgd.network.squared import in_rows
from pathsgd.network.tape import Recording, Step

_LEAST, _MOST = 1e-100, 1e100
"""The sum of every layer is trusted between these. What underflowed is then too small to matter: no
square of a float32 number exceeds 1e77."""


@dataclass(frozen=True)
class Link:
    """One layer: the names of its matrix and bias, and whether it is h W instead of W h."""

    weight: str
    turned: bool
    bias: str | None


def chain(recording: Recording) -> list[Link] | None:
    """The layers of a recording that is a chain from one input to one output; otherwise None."""
    if len(recording.inputs) != 1 or len(recording.outputs) != 1 or recording.rows != 1:
        return None
    rows, links, now = in_rows(recording), [], recording.inputs[0]
    for step in recording.steps:
        if not step.args or step.args[0] is not now or step.made != [*step.outputs]:
            return None
        if step.operation != "relu" and not isinstance(step.rule, Same):
            link = _link(recording, step)
            if link is None or link.weight not in rows:
                return None
            links.append(link)
        (now,) = step.made
    return links if links and recording.outputs == [now] else None


def _link(recording: Recording, step: Step) -> Link | None:
    weight, bias, *more = (*step.args[1:], None, None)
    known = all(v is None or recording.names.get(v) for v in (weight, bias))
    if weight is None or not known or step.kwargs or any(a is not None for a in more):
        return None
    name = recording.names[weight]
    if step.operation == "linear":
        return Link(name, False, None if bias is None else recording.names[bias])
    return Link(name, True, None) if step.operation in ("matmul", "mm") and bias is None else None


@torch.no_grad()
def log_gamma_sq(links: Sequence[Link], parameters: Mapping[str, Tensor]) -> float | None:
    """log gamma^2; None if a number may be out of range, or a weight is not float32 on the CPU."""
    used = [parameters[n] for link in links for n in (link.weight, link.bias) if n is not None]
    if any(p.dtype is not torch.float32 or not p.is_cpu for p in used):
        return None
    h: Tensor | None = None
    total = 0.0
    for link in links:
        weight = parameters[link.weight]
        if link.turned:
            h = squared_products(weight, None, h, into=False)[1]
        else:
            h = squared_products(weight, h, out=False)[0]
        assert h is not None
        if link.bias is not None:
            bias = parameters[link.bias].double()
            h.addcmul_(bias, bias)
        total = float(h.sum())
        if not _LEAST < total < _MOST:
            return None
    return math.log(total)
