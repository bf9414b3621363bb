"""Muon (Jordan et al. 2024): momentum, with all its singular values set to about 1.

m <- momentum * m + (1 - momentum) * u
x = momentum * m + (1 - momentum) * u            Nesterov's; else x = m
x <- x / |x|, then 5 times  x <- a x + (b + c x x^T) x x^T x
d = size * x

The constants are torch.optim.Muon's: singular values above about 0.01 |x| become 0.7 to 1.2.
size, by the names of torch's adjust_lr_fn: "original" sqrt(max(1, rows / columns));
"match_rms_adamw" 0.2 sqrt(max(rows, columns)), with which entries of d are as large as Adam's.

Vectors, and groups with use_muon=False, move by Adam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.optim.rules import Fused, Rule, Settings
from pathsgd.optim.rules.adam import Adam, AdamState
from pathsgd.optim.rules.matrices import matrix_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
LEAST_LENGTH = 1e-7
"""What is shorter counts as this long: 0 stays 0."""
LEAST_SIZE = 96
"""On a CPU, matrices with a smaller dimension are faster in single precision than in bfloat16."""
SIZES = ("original", "match_rms_adamw")


@dataclass
class MuonState:
    """What a matrix remembers: m."""

    momentum_buffer: Tensor


class Muon(Rule):
    """Settings: momentum, nesterov, adjust_lr_fn, use_muon; Adam's betas and eps."""

    def __init__(self) -> None:
        self._adam = Adam()

    def check(self, settings: Settings) -> None:
        """As Adam's; momentum in [0, 1); a known size."""
        self._adam.check(settings)
        if not 0 <= settings["momentum"] < 1:
            raise ValueError(f"momentum must be in [0, 1), got {settings['momentum']}")
        if settings["adjust_lr_fn"] not in SIZES:
            found = settings["adjust_lr_fn"]
            raise ValueError(f"adjust_lr_fn must be one of {', '.join(SIZES)}, got {found!r}")

    def init(self, like: Tensor, settings: Settings) -> MuonState | AdamState:
        """m = 0."""
        if like.dim() < 2 or not settings["use_muon"]:
            return self._adam.init(like, settings)
        return MuonState(torch.zeros_like(like))

    def direction(self, u: Tensor, state: MuonState | AdamState, settings: Settings) -> Tensor:
        """Of a convolution, as the matrix out x (in * taps)."""
        if isinstance(state, AdamState):
            return self._adam.direction(u, state, settings)
        momentum, shape = settings["momentum"], matrix_of(u.shape, flat=True)
        m = state.momentum_buffer.lerp_(u, 1 - momentum)
        x = (u.lerp_(m, momentum) if settings["nesterov"] else m).reshape(shape.rows, shape.columns)
        d = orthogonalized(x, dtype_for(x)).to(u.dtype)
        return shape.back(d * size(shape.rows, shape.columns, settings["adjust_lr_fn"]))

    def fused(
        self,
        state: MuonState | AdamState,
        settings: Settings,
        lr: float,
        *,
        corrected: bool = True,
    ) -> Fused | None:
        """For what moves by Adam."""
        if isinstance(state, MuonState):
            return None
        return self._adam.fused(state, settings, lr, corrected=corrected)


def orthogonalized(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz of a matrix, in `dtype`; 0 stays 0."""
    a, b, c = COEFFICIENTS
    is_tall = x.shape[0] > x.shape[1]
    x = (x.mT if is_tall else x).to(dtype)
    x = x / x.norm().clamp_(min=LEAST_LENGTH)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def dtype_for(x: Tensor) -> torch.dtype:
    """bfloat16 for float32 where that is faster, as in torch's Muon; else the dtype of x."""
    if x.dtype != torch.float32:
        return x.dtype
    if x.is_cpu and (min(x.shape) < LEAST_SIZE or not _multiplies_bfloat16()):
        return x.dtype
    return torch.bfloat16


def _multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for it; without them torch imitates it, slowly."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def size(rows: int, columns: int, name: str) -> float:
    """The length of d."""
    if name == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
