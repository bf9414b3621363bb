"""What every node says to the edges that enter it and to those that leave it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class FlowSidesCall(ctypes.Structure):
    _fields_ = [("count", INT), *fields(POINTER, "flow least out into"), ("exponent", REAL)]


def flow_sides(flow: Tensor, least: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """(out, into), each (n,): what n nodes say to the edges that enter them, and to those that leave them.

        into = max(flow, least)^exponent        out = into * sqrt(flow / max(flow, least)), into where flow is 0

    flow: path flow through every node, float64. least: its lower bound.
    """
    if flow.dtype is not torch.float64 or not native.accepts(flow, least):
        return by_torch(flow, least, exponent)
    flow, least, count = flow.detach().contiguous(), least.detach().contiguous(), flow.numel()
    out, into = torch.empty_like(flow), torch.empty_like(flow)
    places = (address(t, torch.float64, count) for t in (flow, least, out, into))
    native.call("flow_sides", FlowSidesCall(count, *places, exponent), torch.float64)
    return out, into


def by_torch(flow: Tensor, least: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """`flow_sides` in torch alone."""
    bounded = torch.maximum(flow, least)
    into = bounded.sqrt().sqrt() if exponent == 0.25 else bounded**exponent
    return torch.where(flow > 0, (flow / bounded).sqrt(), 1.0) * into, into
