"""uRNN: a complex recurrence with a unitary matrix (Arjovsky, Shah and Bengio, 2015).

    z_t = W h_{t-1} + V x_t             h in C^H
    h_t = (|z_t| + b)_+  z_t / |z_t|    modReLU: the modulus is rectified, the phase kept
    y_t = U [Re h_t; Im h_t] + b_out
    W   = D3 R2 F^-1 D2 Pi R1 F D1

    D_k = diag(exp(i theta_k))     R_k = I - 2 v_k v_k^* / |v_k|^2     F unitary Fourier transform
    Pi  a fixed permutation        learned: theta (3, H), v (2, H) complex, b (H), V, U, b_out, h_0

Applied factor by factor W costs O(H log H) a step, but eight small operations; over many steps it
is cheaper to multiply the factors out once per sequence and apply W as a matrix.  That is done in
complex128, so that W is unitary to the last digits of the complex64 it is then used in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System, input_weights
from pathsgd_lab.tasks.base import State, Task


def reflect(rows: Tensor, v: Tensor) -> Tensor:
    """R z = z - 2 v (v^* z) / |v|^2 for every row z of ``rows`` (N, H)."""
    unit = v / torch.linalg.vector_norm(v)
    return rows - 2.0 * torch.outer(rows @ unit.conj(), unit)


def mod_relu(z: Tensor, bias: Tensor) -> Tensor:
    """(|z| + b)_+ z / |z|, and 0 at z = 0."""
    return torch.relu(z.abs() + bias) * z.sgn()


class UnitaryNet(SequenceNet):
    """The unitary recurrence with a real readout; state [Re h, Im h] interleaved, (B, 2 H)."""

    permutation: Tensor

    def __init__(self, task: Task, hidden: int) -> None:
        super().__init__(task, 2 * hidden)
        self.input = input_weights(task, 2 * hidden)
        self.phases = nn.Parameter(torch.empty(3, hidden).uniform_(-math.pi, math.pi))
        self.reflections = nn.Parameter(torch.empty(2, hidden, 2).uniform_(-1.0, 1.0))
        self.bias = nn.Parameter(torch.zeros(hidden))
        start = math.sqrt(1.5 / hidden)
        self.initial = nn.Parameter(torch.empty(2 * hidden).uniform_(-start, start))
        self.register_buffer("permutation", torch.randperm(hidden))
        with torch.no_grad():
            for weight, units in (
                (next(self.input.parameters()), task.input_size),
                (self.readout.weight, 0),
            ):
                limit = math.sqrt(
                    6.0 / (units + hidden if units else 2 * hidden + task.output_size)
                )
                weight.uniform_(-limit, limit)
            self.readout.bias.zero_()

    def transition(self) -> Tensor:
        """W^T (H, H), complex128: row k is W e_k, so that a row h of states goes to h W^T."""
        d1, d2, d3 = torch.polar(
            torch.ones_like(self.phases, dtype=torch.float64), self.phases.double()
        ).unbind(0)
        v1, v2 = torch.view_as_complex(self.reflections.double()).unbind(0)
        rows = torch.fft.fft(torch.diag(d1), norm="ortho")
        rows = reflect(rows, v1)[:, self.permutation] * d2
        rows = reflect(torch.fft.ifft(rows, norm="ortho"), v2)
        return rows * d3

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        batch = inputs.shape[1]
        start = self.initial.expand(batch, -1) if state is None else state[0]
        h = _complex(start)
        transition = self.transition().to(h.dtype)
        steps = []
        for drive in _complex(self.input(inputs)).unbind(0):
            h = mod_relu(torch.addmm(drive, h, transition), self.bias)
            steps.append(h)
        last = _real(h)
        return (_real(torch.stack(steps)) if all_steps else last), (last,)


def _complex(pairs: Tensor) -> Tensor:
    """(..., 2 H) real to (..., H) complex."""
    return torch.view_as_complex(pairs.unflatten(-1, (-1, 2)).contiguous())


def _real(z: Tensor) -> Tensor:
    """(..., H) complex to (..., 2 H) real."""
    return torch.view_as_real(z).flatten(-2)


@dataclass(frozen=True)
class UrnnSystem(System):
    """Unitary evolution net: the full product D3 R2 F^-1 D2 Pi R1 F D1, modReLU, RMSprop.

    Follows Arjovsky et al. (2015): 512 complex units, phases from U[-pi, pi], reflection vectors
    from U[-1, 1], input and output weights as Glorot and Bengio (2010), b = 0, h_0 learned from
    U[-sqrt(3 / 2H), sqrt(3 / 2H)].  Deviates from the authors' public program, which leaves the
    Fourier transforms out, adds a learned real scale, and draws phases and reflections from Glorot
    and Bengio's range, b from U[-0.01, 0.01] and h_0 from a range sqrt(2) wider.
    """

    name: ClassVar[str] = "urnn"
    title: ClassVar[str] = "uRNN"
    optimiser: ClassVar[str] = "rmsprop"

    hidden: int | None = 512
    """Complex recurrent units; None: the number the paper uses on the task for plain nets."""

    def _build(self, task: Task) -> UnitaryNet:
        return UnitaryNet(task, self.hidden or task.paper.hidden)
