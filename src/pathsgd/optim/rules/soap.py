"""SOAP (Vyas et al. 2024): Adam in the eigenbases of Shampoo's statistics.

g = Q_L^T u Q_R                            u in the bases
m <- beta1 * m + (1 - beta1) * g           v <- beta2 * v + (1 - beta2) * g^2
d = c * Q_L m / (sqrt(v) + eps) Q_R^T      c = sqrt(1 - beta2^t) / (1 - beta1^t)
L <- beta2 * L + (1 - beta2) * u u^T       statistics of the rows; Q_L: their eigenvectors
R <- beta2 * R + (1 - beta2) * u^T u       of the columns; Q_R
Q <- QR(L Q)                               every `precondition_frequency` steps

A power iteration first sorts the columns of Q by q^T L q, descending. v is permuted with them, m is
rotated into the new basis. The first gradient only starts L and R, as in the authors' code: a basis
is never used for the gradient that made it, and the first step moves nothing.

The authors make all first bases from the first gradient, by eigh. Here each is made in its phase: a
basis of phase k at step 1 + k, until when its axes are those of the parameter. Phases of 0 are the
authors' algorithm.

A side has a basis if its dimension is at most `max_dim`, and, with sides="smaller", if it is not
the larger of two. Without bases (vectors) this is Adam.

Adam's m^2 <= v (if beta1 = beta2) fails when the basis rotates: after a spike by a factor of 100.
So v is then at least (m / LARGEST)^2. Without spikes |m| / sqrt(v) stays below 1, and this changes
nothing.

Where g is 0 in exact arithmetic, turning leaves rounding, and Adam would divide it by its own size.
So eps grows by FLOOR * machine epsilon * sqrt(larger dimension) * max sqrt(v), and rows or columns
that never had a gradient stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.update import ADAM, UpdateRule
from pathsgd.optim.rules import Fused, Rule, Settings
from pathsgd.optim.rules.adam import Adam
from pathsgd.optim.rules.matrices import Matrix, matrix_of
from pathsgd.torch_private import is_capturing

FLOOR = 8.0
LARGEST = 2.0
SIDES = ("both", "smaller")


@dataclass
class SoapState:
    """What a parameter remembers: t + 1, m, v, L, Q_L, R, Q_R.

    m and v of a convolution with bases are rows x taps x columns. A phase is the step of a round of
    `precondition_frequency` at which a basis is updated.
    """

    step: int
    exp_avg: Tensor
    exp_avg_sq: Tensor
    left: Tensor | None = None
    left_basis: Tensor | None = None
    right: Tensor | None = None
    right_basis: Tensor | None = None
    left_phase: int = 0
    right_phase: int = 0
    count: Tensor | None = None
    """t on the device, 0-d; None where the host counts all steps."""

    @property
    def sides(self) -> list[str]:
        """The sides that have a basis."""
        return [side for side in ("left", "right") if getattr(self, side) is not None]


class Soap(Rule):
    """Settings: betas, eps, precondition_frequency, max_dim, sides, flat_convolutions.

    capturable: steps may be replayed without the host, so the device counts them, and every step
        that the host does take updates all bases.
    """

    def __init__(self, *, capturable: bool = False) -> None:
        self._capturable = capturable

    def check(self, settings: Settings) -> None:
        """As Adam's; a frequency of at least 1; known sides."""
        Adam().check(settings)
        if not settings["precondition_frequency"] >= 1:
            found = settings["precondition_frequency"]
            raise ValueError(f"precondition_frequency must be at least 1 step, got {found}")
        if settings["sides"] not in SIDES:
            raise ValueError(f"sides must be 'both' or 'smaller', got {settings['sides']!r}")

    def init(self, like: Tensor, settings: Settings) -> SoapState:
        """t = 0, m = v = 0, L = R = 0."""
        matrix = matrix_of(like.shape, flat=settings["flat_convolutions"])
        sides = _sides(matrix, settings)
        shape = matrix.of(like).shape if sides else like.shape
        state = SoapState(0, like.new_zeros(shape), like.new_zeros(shape))
        if self._capturable:
            state.count = torch.zeros((), dtype=torch.float64, device=like.device)
        for side, size in sides:
            setattr(state, side, like.new_zeros(size, size))
            setattr(state, side + "_basis", torch.eye(size, dtype=like.dtype, device=like.device))
        return state

    def arrange(
        self, joining: Sequence[SoapState], known: Sequence[SoapState], settings: Settings
    ) -> None:
        """Spread the updates of new bases over the steps."""
        stagger(joining, known, settings["precondition_frequency"])

    def loaded(self, state: SoapState) -> None:
        """Steps are counted where this optimiser counts them."""
        if state.step == 0 or state.count is None:
            return
        if not self._capturable:
            state.step, state.count = round(float(state.count)) + 1, None
        elif not bool(state.count):
            state.count.fill_(state.step - 1)

    def direction(self, u: Tensor, state: SoapState, settings: Settings) -> Tensor:
        """0 for the first gradient."""
        state.step += 1
        is_first = state.step == 1
        if state.count is not None and not is_first:
            state.count.add_(1)
        if not state.sides:
            return torch.zeros_like(u) if is_first else _adam(u, state, settings)
        matrix = matrix_of(u.shape, flat=settings["flat_convolutions"])
        x = matrix.of(u)
        d = torch.zeros_like(x)
        if not is_first:
            d = _turned(_adam(_turned(x, state), state, settings), state, back=True)
        _learn(x, state, settings["betas"][1])
        for side in state.sides:
            self._renew(state, side, settings)
        return matrix.back(d)

    def _renew(self, state: SoapState, side: str, settings: Settings) -> None:
        """The first basis, or the next where it is due; never while a step is captured."""
        if self._capturable:
            steps, is_due = state.step - 1, not is_capturing(state.exp_avg.device)
        else:
            steps = state.step - 1 - getattr(state, side + "_phase")
            is_due = steps > 0 and steps % settings["precondition_frequency"] == 0
        if steps == 0:
            _begin(state, side)
        elif is_due:
            _iterate(state, side)

    def fused(
        self, state: SoapState, settings: Settings, lr: float, *, corrected: bool = True
    ) -> Fused | None:
        """For parameters without bases. The kernels have other corrections on a device."""
        if state.sides or not corrected:
            return None
        moments = ("exp_avg", "exp_avg_sq")
        if state.step == 0:  # nothing is remembered of this gradient
            return Fused(UpdateRule(ADAM, betas=(1.0, 1.0), eps=1.0), 0.0, moments)
        rule = UpdateRule(ADAM, betas=settings["betas"], eps=settings["eps"])
        return Fused(rule, lr * correction(settings["betas"], state.step), moments)


def correction(betas: tuple[float, float], count: Any) -> Any:
    """c: m and v began at 0."""
    return (1 - betas[1] ** count) ** 0.5 / (1 - betas[0] ** count)


def _sides(matrix: Matrix, settings: Settings) -> list[tuple[str, int]]:
    """The sides that get a basis, and their dimensions. A dimension of 1 has nothing to turn."""
    if len(matrix.shape) < 2:
        return []
    sides = [("left", matrix.rows), ("right", matrix.columns)]
    if settings["sides"] == "smaller":
        sides = sorted(sides, key=lambda side: side[1])[:1]
    return [(side, size) for side, size in sides if 1 < size <= settings["max_dim"]]


def stagger(joining: Sequence[SoapState], known: Sequence[SoapState], frequency: int) -> None:
    """Give bases that have not begun a phase each, so that the costliest step costs little.

    The largest first, each to the step that has least to do.
    """
    load = [0.0] * frequency
    for state, side in _bases(known):
        if state.step:
            load[getattr(state, side + "_phase") % frequency] += _cost(state, side)
    new = [(state, side) for state, side in _bases(joining) if not state.step]
    for state, side in sorted(new, key=lambda of: -_cost(*of)):
        phase = min(range(frequency), key=load.__getitem__)
        setattr(state, side + "_phase", phase)
        load[phase] += _cost(state, side)


def _bases(states: Iterable[SoapState]) -> list[tuple[SoapState, str]]:
    return [(state, side) for state in states for side in state.sides]


def _cost(state: SoapState, side: str) -> float:
    return float(len(getattr(state, side))) ** 3


def _adam(g: Tensor, state: SoapState, settings: Settings) -> Tensor:
    """c * m / (sqrt(v) + eps), and the moments up to date."""
    beta1, beta2 = settings["betas"]
    m = state.exp_avg.lerp_(g, 1 - beta1)
    divisor = state.exp_avg_sq.mul_(beta2).addcmul_(g, g, value=1 - beta2).sqrt()
    if state.sides:
        share = FLOOR * torch.finfo(g.dtype).eps * max(g.shape) ** 0.5
        divisor.add_(divisor.amax().mul_(share))
    d = torch.div(m, divisor.add_(settings["eps"]), out=divisor)
    count = state.step - 1 if state.count is None else state.count
    return d.mul_(correction(settings["betas"], count))


def _turned(x: Tensor, state: SoapState, *, back: bool = False) -> Tensor:
    """Q_L^T x Q_R, or back to where the parameter lives, Q_L x Q_R^T."""
    if state.left_basis is not None:
        x = _along("left", x, state.left_basis if back else state.left_basis.mT)
    if state.right_basis is not None:
        x = _along("right", x, state.right_basis if back else state.right_basis.mT)
    return x


def _along(side: str, x: Tensor, turn: Tensor) -> Tensor:
    """turn x, or x turn^T."""
    if side == "left":
        return (turn @ x.view(len(turn), -1)).view(x.shape)
    return (x.view(-1, len(turn)) @ turn.mT).view(x.shape)


def _learn(x: Tensor, state: SoapState, beta: float) -> None:
    """L and R."""
    if state.left is not None:
        rows = x.view(len(state.left), -1)
        state.left.addmm_(rows, rows.mT, beta=beta, alpha=1 - beta)
    if state.right is not None:
        rows = x.view(-1, len(state.right))
        state.right.addmm_(rows.mT, rows, beta=beta, alpha=1 - beta)


def _begin(state: SoapState, side: str) -> None:
    """The first basis in the place of the axes; none where statistics overflowed.

    The host does not wait for a device to say so. At the first step there are no moments. Later v
    becomes what it would be if the entries of g were independent: the squares of the new basis
    times v.
    """
    statistics, basis = getattr(state, side), getattr(state, side + "_basis")
    is_finite = statistics.isfinite().all()
    new = torch.where(is_finite, _first_basis(torch.where(is_finite, statistics, 0.0)), basis)
    if state.step > 1:
        _turn_mean(state, side, basis, new)
        second = _along(side, state.exp_avg_sq, (new.mT @ basis).square())
        _keep_squares(state, second)
    basis.copy_(new)


def _first_basis(statistics: Tensor) -> Tensor:
    """Eigenvectors, by falling eigenvalue; in double precision, because they are computed once.

    Where the statistics are 0 every basis is one of eigenvectors, and eigh's would depend on
    rounding. QR, given columns of 0, takes the axes, reflected to where the others are not.
    """
    values, vectors = (found.flip(-1) for found in torch.linalg.eigh(statistics.double()))
    basis = torch.linalg.qr(vectors * (values > _least(values, statistics.dtype))).Q
    return _still(basis.to(statistics.dtype), statistics)


def _iterate(state: SoapState, side: str) -> None:
    """One power iteration, and the moments in the new basis, without synchronising the device.

    A small share of the old basis is added, so that directions absent from the statistics stay as
    they are instead of being made of rounding errors. All tensors are overwritten in place: a
    captured step reads them there. They stay contiguous, as in a checkpoint; other strides would
    round products differently.
    """
    statistics, basis = getattr(state, side), getattr(state, side + "_basis")
    image = statistics @ basis
    sizes = (basis * image).sum(0)
    least = _least(sizes, sizes.dtype)
    order = torch.where(sizes > least, sizes, 0.0).argsort(descending=True, stable=True)
    columns = torch.addcmul(image, basis, least)[:, order]
    new = _still(torch.linalg.qr(columns).Q, statistics)
    is_finite = sizes.isfinite().all()
    new = torch.where(is_finite, new, basis)
    order = torch.where(is_finite, order, torch.arange(len(order), device=order.device))
    _turn_mean(state, side, basis, new)
    _keep_squares(state, state.exp_avg_sq.index_select(0 if side == "left" else -1, order))
    basis.copy_(new)


def _turn_mean(state: SoapState, side: str, basis: Tensor, new: Tensor) -> None:
    """m, from one basis to another."""
    state.exp_avg.copy_(_along(side, _along(side, state.exp_avg, basis), new.mT))


def _keep_squares(state: SoapState, second: Tensor) -> None:
    """v, and at least what m asks for."""
    torch.maximum(second, (state.exp_avg / LARGEST).square_(), out=state.exp_avg_sq)


def _least(sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """What an eigenvalue is compared with: far above rounding, far below what matters."""
    return sizes.max() * torch.finfo(dtype).eps ** 0.6


def _still(basis: Tensor, statistics: Tensor) -> Tensor:
    """The basis without rows that never had a gradient: rounding would move them with the others.

    The next iteration gives a row back that has had one.
    """
    return basis * (statistics.diagonal() > 0)[:, None]
