"""Path quantities of a single-layer ReLU RNN in closed form, by plain loops.

    h_t = [W_in x_t + W_rec h_{t-1} + b]_+ ,  h_0 = 0 ,  y_t = W_out h_t + c          t = 1..T

Its squared network on all ones, with A = W_rec^2 and u, v as below, is the linear recurrence

    h_1 = u        h_s = A h_{s-1} + u                           u_j = sum_k W_in[j,k]^2 + b_j^2
    delta_T = v    delta_s = A^T delta_{s+1} + v [every step]    v_j = sum_o W_out[o,j]^2
    kappa1(W_rec) = sum_{s=1}^{T-1} delta_{s+1} h_s^T
    kappa2(W_rec) = 4 A .* sum_{n=0}^{T-3} [ (A^n)^T .* sum_{s=1}^{T-n-2} delta_{s+n+2} h_s^T ]

Glossary: H units; T steps; s, t time steps, kept in row s - 1; n number of recurrent edges between
two uses of the same weight; delta_s = d gamma^2 / d h_s; .* entry by entry. "every step": the loss
reads y_1..y_T, else y_T alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .graph import Array

PAIR_FACTOR = {"exact": 4.0, "paper": 1.0}
"""The count of a pair of uses of one weight in kappa2: 4 by the derivative, 1 in the paper."""


@dataclass(frozen=True)
class SquaredRNN:
    """The squared network of a single-layer RNN: A (H, H), u (H,), v (H,), T, outputs read."""

    recurrent_sq: Array
    input_sq: Array
    output_sq: Array
    steps: int
    every_step: bool

    def __post_init__(self) -> None:
        units = len(self.input_sq)
        if self.steps < 1:
            raise ValueError(f"an RNN needs at least one time step, got {self.steps}")
        shapes = (self.recurrent_sq.shape, self.input_sq.shape, self.output_sq.shape)
        if shapes != ((units, units), (units,), (units,)):
            raise ValueError(f"expected shapes (H, H), (H,), (H,) for A, u and v, got {shapes}")

    @classmethod
    def from_weights(
        cls,
        w_in: ArrayLike,
        w_rec: ArrayLike,
        w_out: ArrayLike,
        steps: int,
        every_step: bool,
        biases: tuple = (),
    ) -> SquaredRNN:
        """From W_in (H, I), W_rec (H, H), W_out (O, H) and any number of biases, each (H,)."""
        w_in, w_rec, w_out = (np.asarray(w, dtype=np.float64) for w in (w_in, w_rec, w_out))
        input_sq = (w_in**2).sum(axis=1) + sum(np.asarray(b) ** 2 for b in biases)
        return cls(w_rec**2, input_sq, (w_out**2).sum(axis=0), steps, every_step)

    def states(self) -> Array:
        """h_s = A h_{s-1} + u; shape (T, H)."""
        h = [self.input_sq]
        for _ in range(1, self.steps):
            h.append(self.recurrent_sq @ h[-1] + self.input_sq)
        return np.array(h)

    def deltas(self) -> Array:
        """delta_s = A^T delta_{s+1} + v at steps whose output is read; shape (T, H)."""
        delta = [self.output_sq]
        for _ in range(1, self.steps):
            delta.append(
                self.recurrent_sq.T @ delta[-1] + (self.output_sq if self.every_step else 0.0)
            )
        return np.array(delta[::-1])

    def gamma_sq(self) -> float:
        """gamma^2 = sum of v . h_s over the steps that are read (without output bias paths)."""
        read = self.states() if self.every_step else self.states()[-1:]
        return float((read @ self.output_sq).sum())

    def kappa1_input(self) -> Array:
        """kappa1(W_in)[j, any k] = kappa1(b)[j] = sum_s delta_s[j]; shape (H,)."""
        return self.deltas().sum(axis=0)

    def kappa1_output(self) -> Array:
        """kappa1(W_out)[any o, j] = sum of h_s[j] over the steps that are read; shape (H,)."""
        states = self.states()
        return states.sum(axis=0) if self.every_step else states[-1]

    def kappa1_recurrent(self) -> Array:
        """kappa1(W_rec) = sum_{s=1}^{T-1} delta_{s+1} h_s^T; shape (H, H)."""
        states, deltas = self.states(), self.deltas()
        return deltas[1:].T @ states[:-1]

    def kappa2_recurrent(self, convention: str = "exact") -> Array:
        """kappa2(W_rec) = f A .* sum_n [(A^n)^T .* sum_s delta_{s+n+2} h_s^T]; f = 4 (exact) or 1.

        kappa2 of W_in, W_out and the biases is zero: no path uses one of their entries twice.
        """
        if convention not in PAIR_FACTOR:
            raise ValueError(f'convention must be "exact" or "paper", got {convention!r}')
        states, deltas = self.states(), self.deltas()
        total, power = np.zeros_like(self.recurrent_sq), np.eye(len(self.input_sq))
        for n in range(self.steps - 2):
            total += power.T * (deltas[n + 2 :].T @ states[: self.steps - n - 2])
            power = power @ self.recurrent_sq
        return PAIR_FACTOR[convention] * self.recurrent_sq * total
