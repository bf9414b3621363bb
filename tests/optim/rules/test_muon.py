"""Muon's rule: against torch's optimiser, and its effect on the momentum's singular values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pathsgd.optim.rules import muon
from pathsgd.optim.rules.adam import Adam
from pathsgd.optim.rules.muon import Muon

SHAPES = [(6, 4), (4, 6), (7, 7), (1, 5), (3, 2, 3, 3)]


def drawn(shape, count, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)


def settings(**changes):
    usual = {"momentum": 0.95, "nesterov": True, "adjust_lr_fn": "original", "use_muon": True}
    return {**usual, "betas": (0.9, 0.99), "eps": 1e-8, **changes}


def followed(gradients, options):
    """The directions of one parameter at every step."""
    state = Muon().init(gradients[0], options)
    return [Muon().direction(u.clone(), state, options) for u in gradients]


@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_it_is_torch_s_optimiser(shape, nesterov, adjust_lr_fn, monkeypatch):
    """With the iteration in bfloat16 in both."""
    monkeypatch.setattr(muon, "dtype_for", lambda x: torch.bfloat16)
    options = {"momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust_lr_fn}
    gradients = drawn(shape, 8, torch.float32)
    p = torch.nn.Parameter(torch.zeros(shape))
    optimizer = torch.optim.Muon([p], lr=1.0, weight_decay=0.0, **options)
    for u, d in zip(gradients, followed(gradients, settings(**options))):
        p.data.zero_()
        p.grad = u.clone()
        optimizer.step()
        torch.testing.assert_close(d, -p.detach(), rtol=1e-6, atol=0)


def five_times(sizes):
    """The iteration on singular values, which is all that it changes."""
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        sizes = a * sizes + b * sizes**3 + c * sizes**5
    return sizes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_changes_singular_values_only(shape):
    gradients = drawn(shape, 6)
    m = np.zeros(shape)
    for u, d in zip(gradients, followed(gradients, settings(momentum=0.8))):
        m = 0.8 * m + 0.2 * u.numpy()
        x = (0.8 * m + 0.2 * u.numpy()).reshape(shape[0], -1)
        left, sizes, right = np.linalg.svd(x, full_matrices=False)
        expected = left * five_times(sizes / np.linalg.norm(sizes)) @ right
        expected *= max(1.0, x.shape[0] / x.shape[1]) ** 0.5
        np.testing.assert_allclose(d.reshape(x.shape).numpy(), expected, atol=1e-10)


def test_singular_values_come_near_1():
    (d,) = followed(drawn((128, 200), 1, torch.float32), settings())
    sizes = torch.linalg.svdvals(d)
    assert sizes.min() > 0.6 and sizes.max() < 1.3


def test_it_turns_with_an_orthogonal_change_of_basis():
    gradients = drawn((5, 8), 6)
    left, right = (torch.linalg.qr(drawn((n, n), 1)[0]).Q for n in (5, 8))
    turned = left @ gradients @ right.mT
    for d, e in zip(followed(gradients, settings()), followed(turned, settings())):
        torch.testing.assert_close(left @ d @ right.mT, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("factor", [2.0**-12, 2.0**20])
@pytest.mark.parametrize("shape", [*SHAPES, (130, 128)], ids=str)
def test_the_size_of_gradients_has_no_effect(shape, factor):
    gradients = drawn(shape, 5, torch.float32)
    found, same = followed(gradients, settings()), followed(factor * gradients, settings())
    assert all(map(torch.equal, found, same))


@pytest.mark.parametrize(("shape", "changes"), [((5,), {}), ((4, 3), {"use_muon": False})])
def test_the_rest_moves_by_adam(shape, changes):
    gradients, options = drawn(shape, 5), settings(**changes)
    state = Adam().init(gradients[0], options)
    for u, d in zip(gradients, followed(gradients, options)):
        assert torch.equal(d, Adam().direction(u.clone(), state, options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hard_gradients(dtype, monkeypatch):
    monkeypatch.setattr(muon, "dtype_for", lambda x: dtype)
    u = drawn((20, 30), 1, torch.float32)
    ill = torch.logspace(0, -7, 20)[:, None] * u
    dead, single = u.clone(), torch.zeros_like(u)
    dead[:, 3:9], single[:, 7] = 0, u[:, 7]
    for hard in (ill, dead, single, torch.zeros_like(u), 1e-30 * u):
        (d,) = followed(hard, settings())
        assert d.isfinite().all()
        assert d.norm() < 6
        assert not d[(hard[0] == 0).all(1)].any()


def test_100_steps_after_a_spike_it_is_forgotten():
    """10 times the usual gradient, which clipping may leave of any."""
    gradients = drawn((20, 30), 140) + drawn((20, 30), 1, seed=1)
    spiked = gradients.clone()
    spiked[30] *= 10
    d, e = (followed(g, settings())[-1].flatten() for g in (gradients, spiked))
    assert torch.nn.functional.cosine_similarity(d, e, 0) > 0.99


def test_dtype_of_the_iteration():
    assert muon.dtype_for(torch.zeros(200, 200, dtype=torch.float64)) == torch.float64
    assert muon.dtype_for(torch.zeros(10, 200)) == torch.float32
    assert muon.dtype_for(torch.zeros(10, 200, device="meta")) == torch.bfloat16


@pytest.mark.parametrize(
    "changes",
    [{"momentum": 1.0}, {"momentum": -0.1}, {"adjust_lr_fn": "mine"}, {"betas": (1.0, 0.9)},
     {"eps": -1.0}],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Muon().check(settings(**changes))
