"""SOAP's rule: against a slow oracle and the package's optimiser; its gradient-independent laws."""

from __future__ import annotations

import numpy as np
import pytest
import pytorch_optimizer
import torch

from pathsgd.optim.rules.soap import Soap, stagger

USUAL = {
    "betas": (0.95, 0.95), "eps": 1e-8, "precondition_frequency": 10, "max_dim": 1024,
    "sides": "both", "flat_convolutions": False,
}  # fmt: skip
SETTINGS = {**USUAL, "precondition_frequency": 5, "max_dim": 7}
SHAPES = [(7, 7), (5,), (5, 8), (8, 5), (4, 3, 3, 3), (6, 9, 2)]


def drawn(shapes, count, dtype=torch.float64, seed=0):
    """Gradients of `count` steps, noise about a mean."""
    generator = torch.Generator().manual_seed(seed)
    means = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    noise = [
        [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        for _ in range(count)
    ]
    return [[(0.05 * m + 0.1 * n).to(dtype) for m, n in zip(means, ns)] for ns in noise]


def states_for(gradients, settings):
    return [Soap().init(u, settings) for u in gradients[0]]


def directions(us, states, settings):
    return [Soap().direction(u.clone(), state, settings) for u, state in zip(us, states)]


def followed(gradients, settings):
    """The directions of every step."""
    states = states_for(gradients, settings)
    return [directions(us, states, settings) for us in gradients]


class Oracle:
    """The published algorithm for one tensor, in numpy: unrotated moments, rotated when used.

    Each of the first two dimensions of 2 to max_dim has a basis; vectors have none.
    """

    def __init__(self, shape, settings):
        self.settings, self.count = settings, 0
        self.modes = [d for d in (0, 1) if len(shape) > 1 and 1 < shape[d] <= settings["max_dim"]]
        self.statistics = {d: np.zeros((shape[d], shape[d])) for d in self.modes}
        self.bases, self.m, self.v = {}, np.zeros(shape), np.zeros(shape)

    def turn(self, x, d, matrix):
        return np.moveaxis(np.tensordot(matrix, x, axes=(1, d)), 0, d)

    def inside(self, x):
        for d in self.modes:
            x = self.turn(x, d, self.bases[d].T)
        return x

    def outside(self, x):
        for d in self.modes:
            x = self.turn(x, d, self.bases[d])
        return x

    def learn(self, u):
        b = self.settings["betas"][1]
        for d in self.modes:
            rows = np.moveaxis(u, d, 0).reshape(u.shape[d], -1)
            self.statistics[d] = b * self.statistics[d] + (1 - b) * rows @ rows.T

    def direction(self, u):
        (b1, b2), t = self.settings["betas"], self.count
        self.count += 1
        if t == 0:
            self.learn(u)
            for d, found in self.statistics.items():
                self.bases[d] = np.linalg.eigh(found)[1][:, ::-1]
            return np.zeros_like(u)
        self.m = b1 * self.m + (1 - b1) * u
        self.v = b2 * self.v + (1 - b2) * self.inside(u) ** 2
        adam = self.inside(self.m) / (np.sqrt(self.v) + self.settings["eps"])
        result = self.outside(adam) * np.sqrt(1 - b2**t) / (1 - b1**t)
        self.learn(u)
        if t % self.settings["precondition_frequency"] == 0:
            self.renew()
        return result

    def renew(self):
        for d, basis in self.bases.items():
            sizes = [q @ self.statistics[d] @ q for q in basis.T]
            order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
            self.v = np.take(self.v, order, axis=d)
            self.bases[d] = np.linalg.qr(self.statistics[d] @ basis[:, order])[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_published_algorithm(shape):
    gradients = drawn([shape], 60)
    oracle = Oracle(shape, SETTINGS)
    for (u,), (found,) in zip(gradients, followed(gradients, SETTINGS)):
        np.testing.assert_allclose(found.numpy(), oracle.direction(u.numpy()), atol=1e-6)


def test_it_is_the_package_s_optimiser():
    """From the first QR on to 1e-5: that package computes it in float32 for every dtype."""
    shapes = [(7, 7), (5,), (5, 8), (8, 5)]
    gradients = drawn(shapes, 40)
    parameters = [torch.nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes]
    optimizer = pytorch_optimizer.SOAP(
        parameters, lr=1.0, weight_decay=0.0, precondition_frequency=5, max_precondition_dim=7
    )
    for step, (us, found) in enumerate(zip(gradients, followed(gradients, SETTINGS))):
        with torch.no_grad():
            for p, u in zip(parameters, us):
                p.zero_()
                p.grad = u.clone()
        optimizer.step()
        for p, d in zip(parameters, found):
            torch.testing.assert_close(d, -p.detach(), rtol=0, atol=1e-10 if step <= 5 else 1e-5)


def test_without_bases_it_is_adam():
    gradients = drawn([(4, 3), (5,)], 20)
    settings = {**USUAL, "betas": (0.9, 0.99), "eps": 0.0, "max_dim": 1}
    parameters = [torch.zeros_like(u, requires_grad=True) for u in gradients[0]]
    adam = torch.optim.Adam(parameters, lr=1.0, betas=settings["betas"], eps=0.0)
    for us, found in list(zip(gradients, followed(gradients, settings)))[1:]:
        before = [p.detach().clone() for p in parameters]
        for p, u in zip(parameters, us):
            p.grad = u
        adam.step()
        for p, start, d in zip(parameters, before, found):
            torch.testing.assert_close(d, start - p.detach())


def test_it_turns_with_an_orthogonal_change_of_basis():
    """With full-rank statistics, and while the bases are eigenvectors: before the first QR."""
    gradients = drawn([(6, 6)], 12)
    left, right = (torch.linalg.qr(u).Q for (u,) in drawn([(6, 6)], 2, seed=1))
    turned = [[left @ u @ right.mT] for (u,) in gradients]
    settings = {**USUAL, "precondition_frequency": 12}
    for (d,), (e,) in zip(followed(gradients, settings), followed(turned, settings)):
        torch.testing.assert_close(left @ d @ right.mT, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(5, 5), (5, 5, 4)], ids=str)
@pytest.mark.parametrize(
    "phases", [None, (1, 3)], ids=["both sides at once", "one after the other"]
)
def test_moments_are_permuted_with_the_basis(shape, phases):
    """For diagonal gradients the bases are the axes in some order, so SOAP equals Adam."""
    generator = torch.Generator().manual_seed(0)
    settings = {**USUAL, "precondition_frequency": 5}
    gradients = []
    for step in range(60):
        sizes = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).roll(step // 12)
        taps = torch.randn(5, *shape[2:], generator=generator).sign() * sizes.view(
            5, *[1] * len(shape[2:])
        )
        gradients.append(torch.zeros(shape, dtype=torch.float64))
        for i in range(5):
            gradients[-1][i, i] = taps[i]
    turned, plain = states_for([[gradients[0]]], settings), {**USUAL, "max_dim": 1}
    if phases:
        turned[0].left_phase, turned[0].right_phase = phases
    adam, orders = states_for([[gradients[0]]], plain), set()
    for u in gradients:
        (d,), (e,) = (
            directions([u], turned, settings), directions([u], adam, plain)
        )  # fmt: skip
        torch.testing.assert_close(d, e, rtol=0, atol=1e-6)
        orders.add(tuple(turned[0].left_basis.abs().argmax(0).tolist()))
    assert len(orders) > 3


def test_same_gradients_same_bits():
    gradients = drawn(SHAPES, 30, torch.float32)
    for found, again in zip(followed(gradients, SETTINGS), followed(gradients, SETTINGS)):
        assert all(map(torch.equal, found, again))


def test_a_copied_state_goes_on_with_the_same_bits():
    """Copied as storage does it: contiguous. Also between two updates of the bases."""
    gradients = drawn(SHAPES, 30, torch.float32)
    expected, states = followed(gradients, SETTINGS), states_for(gradients, SETTINGS)
    for step, us in enumerate(gradients):
        assert all(map(torch.equal, directions(us, states, SETTINGS), expected[step]))
        for state in states:
            for name, value in vars(state).items():
                if isinstance(value, torch.Tensor):
                    setattr(state, name, value.contiguous().clone())


def test_one_parameter_more_changes_none_of_the_others():
    gradients = drawn(SHAPES, 20, torch.float32)
    fewer = [us[:-1] for us in gradients]
    for found, less in zip(followed(gradients, SETTINGS), followed(fewer, SETTINGS)):
        assert all(map(torch.equal, found[:-1], less))


def test_smaller_side_only():
    settings = {**USUAL, "sides": "smaller", "max_dim": 8}
    found = [
        Soap().init(torch.zeros(s), settings) for s in [(3, 5), (5, 3), (3, 9), (9, 9), (1, 5)]
    ]
    assert [(s.left is not None, s.right is not None) for s in found] == [
        (True, False), (False, True), (True, False), (False, False), (False, False)
    ]  # fmt: skip


def test_basis_updates_are_spread_over_the_steps():
    settings = {**USUAL, "precondition_frequency": 10}
    states = [Soap().init(torch.zeros(n, n), settings) for n in (64, 32, 32, 32, 16, 8, 8)]
    stagger(states, states, 10)
    load = [0] * 10
    for state in states:
        load[state.left_phase] += len(state.left) ** 3
        load[state.right_phase] += len(state.right) ** 3
    assert max(load) == 64**3
    assert sorted(load)[2] > 0
    assert load.count(64**3) == 2


def bases(states):
    return [b.clone() for state in states for b in (state.left_basis, state.right_basis)]


def test_staggered_every_basis_turns_once_a_round():
    gradients = drawn([(7, 7), (6, 6)], 21)
    states = states_for(gradients, SETTINGS)
    stagger(states, states, 5)
    changes = [0] * 4
    for us in gradients:
        before = bases(states)
        directions(us, states, SETTINGS)
        after = bases(states)
        changes = [n + (not torch.equal(a, b)) for n, a, b in zip(changes, after, before)]
    phases = [phase for s in states for phase in (s.left_phase, s.right_phase)]
    assert sorted(phases) == [0, 1, 2, 3]
    assert changes == [5 if phase == 0 else 4 for phase in phases]  # the first by eigh


def test_staggered_one_step_makes_one_first_basis(monkeypatch):
    gradients = drawn([(7, 7), (6, 6)], 12)
    states, made = states_for(gradients, SETTINGS), []
    stagger(states, states, 5)
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: made.append(step) or eigh(x))
    for step, us in enumerate(gradients):  # noqa: B007
        directions(us, states, SETTINGS)
    assert made == [0, 1, 2, 3]


def test_until_it_has_a_basis_a_matrix_moves_by_adam():
    """And then in eigenvectors: nothing of v is lost, and the statistics are diagonal."""
    gradients = drawn([(6, 4)], 5)
    (late,), (adam,) = (
        states_for(gradients, settings) for settings in (SETTINGS, {**SETTINGS, "max_dim": 1})
    )
    late.left_phase = late.right_phase = 3
    for us in gradients[:4]:
        found, plain = directions(us, [late], SETTINGS), directions(us, [adam], SETTINGS)
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-9)
    torch.testing.assert_close(late.exp_avg_sq.sum(), adam.exp_avg_sq.sum())
    torch.testing.assert_close(
        late.exp_avg, late.left_basis.mT @ adam.exp_avg @ late.right_basis, rtol=0, atol=1e-12
    )
    for side in ("left", "right"):
        statistics, basis = getattr(late, side), getattr(late, side + "_basis")
        turned = basis.mT @ statistics @ basis
        torch.testing.assert_close(turned, turned.diagonal().diag(), rtol=0, atol=1e-12)
    (d,), (e,) = (directions(gradients[4], [s], SETTINGS) for s in (late, adam))
    assert not torch.allclose(d, e, atol=1e-2)


def hard(kind):
    """60 gradients of shape (20, 30)."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(60, 20, 30, generator=generator)
    if kind == "condition number 1e7":
        u = torch.logspace(0, -7, 20)[:, None] * u
    elif kind == "zero rows":
        u[:, 3:9] = 0
    elif kind == "one live unit":
        u[:, :7], u[:, 8:] = 0, 0
    elif kind == "one spike":
        u[30] *= 1e4
    elif kind == "nothing":
        u.zero_()
    return u


@pytest.mark.parametrize(
    "kind", ["condition number 1e7", "zero rows", "one live unit", "one spike", "nothing"]
)
def test_hard_gradients(kind):
    gradients = hard(kind)
    state = Soap().init(gradients[0], USUAL)
    for u in gradients:
        (d,) = directions([u], [state], USUAL)
        assert d.isfinite().all()
        assert d.norm() < 2 * 600**0.5
        assert not d[(gradients == 0).all(0)].any()  # what never had a gradient
    alive = gradients.any(0)
    for basis, rows in zip(bases([state]), (alive.any(1), alive.any(0))):
        basis = basis[rows]
        torch.testing.assert_close(basis @ basis.mT, torch.eye(len(basis)), rtol=0, atol=1e-5)


def test_a_row_that_comes_alive_moves_after_one_round():
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(40, 6, 8, generator=generator)
    gradients[:15, 2] = 0
    rows = [d[0][2].abs().max() for d in followed(gradients[:, None], USUAL)]
    assert not any(rows[:15])
    assert min(rows[21:]) > 0.1


def test_after_a_spike_no_step_is_much_longer_than_adam_s_can_be():
    """Adam's entries are at most 1 with equal betas."""
    gradients = [[u] for u in hard("one spike")]
    lengths = [float(d.norm()) / 600**0.5 for (d,) in followed(gradients, USUAL)]
    assert max(lengths[:30]) <= 1
    assert max(lengths[30:]) <= 2


def test_rounding_moves_nothing():
    """Rank-4 gradients in float32: outside their span only rounding is left, not a step."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 4, generator=generator)).Q
    state = Soap().init(torch.zeros(40, 30), USUAL)
    for _ in range(60):
        u = basis @ torch.randn(4, 30, generator=generator)
        (d,) = directions([u / u.norm()], [state], USUAL)
    inside = basis @ (basis.mT @ d)
    assert inside.norm() > 1
    assert (d - inside).norm() < 0.1 * inside.norm()


def test_statistics_that_overflowed_change_no_basis():
    state = Soap().init(torch.zeros(3, 3), SETTINGS)
    for size in (1.0, 1.0, 1e25, 1.0, 1.0, 1.0, 1.0):
        (d,) = directions([size * torch.tensor(np.diag([1.0, 2, 3])).float()], [state], SETTINGS)
    assert state.left_basis.isfinite().all()
    assert not d.isnan().any()


@pytest.mark.parametrize(
    "changes",
    [
        {"precondition_frequency": 0},
        {"sides": "left"},
        {"betas": (0.9, 1.0)},
        {"eps": float("nan")},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Soap().check({**USUAL, **changes})


def test_new_bases_are_staggered_around_those_that_have_begun():
    states = [Soap().init(torch.zeros(n, n), USUAL) for n in (8, 8, 4)]
    stagger(states[:2], states, 4)
    states[0].step = states[1].step = 3
    kept = [(s.left_phase, s.right_phase) for s in states[:2]]
    assert sorted(phase for pair in kept for phase in pair) == [0, 1, 2, 3]
    states[1].left_phase = states[1].right_phase  # one step has nothing to do
    free = {0, 1, 2, 3} - {states[0].left_phase, states[0].right_phase, states[1].left_phase}
    before = (states[0].left_phase, states[1].left_phase)
    stagger(states, states, 4)
    assert {states[2].left_phase, states[2].right_phase} == free
    assert before == (states[0].left_phase, states[1].left_phase)
