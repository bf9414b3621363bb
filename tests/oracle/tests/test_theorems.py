"""The paper's theorems, each as a test on explicit graphs."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracle import build, feasible_rescalings, log_factors, pack, rescale, unpack

seeds = st.integers(0, 2**32 - 1)
small = st.integers(1, 3)

networks = st.one_of(
    st.builds(build.mlp, st.lists(small, min_size=3, max_size=4), st.booleans()),
    st.builds(
        build.rnn,
        inputs=st.integers(1, 2),
        hidden=st.lists(st.integers(1, 2), min_size=1, max_size=2),
        outputs=st.integers(1, 2),
        steps=st.integers(1, 3),
        bias=st.booleans(),
        every_step=st.booleans(),
        bidirectional=st.booleans(),
    ),
    st.builds(
        build.conv1d,
        small,
        small,
        kernel=st.integers(1, 3),
        length=st.integers(3, 4),
        padding=st.integers(0, 1),
    ),
    st.builds(
        build.residual, small, small, small, small, st.integers(1, 2), st.booleans(), st.booleans()
    ),
    st.builds(build.chain, st.integers(1, 4)),
    st.builds(
        lambda seed, hidden: build.random_network(
            np.random.default_rng(seed), hidden=hidden, parameters=25
        ),
        seeds,
        st.integers(1, 4),
    ),
)


def draw_rescaling(network, rng, decades=2.0):
    """A feasible beta; each coefficient moves a unit by up to this many decades up or down."""
    basis = feasible_rescalings(network)
    assume(len(basis) > 0)
    largest = np.abs(basis).max()
    return rng.uniform(-1, 1, size=len(basis)) @ basis * decades * np.log(10) / largest


@settings(max_examples=60)
@given(drawn=networks, seed=seeds)
def test_theorem_1_a_feasible_rescaling_changes_neither_function_nor_gamma_sq(drawn, seed):
    network, rng = drawn[0], np.random.default_rng(seed)
    p, x = rng.normal(size=network.parameter_count), rng.normal(size=len(network.inputs))
    scaled = rescale(network, p, draw_rescaling(network, rng))
    size = network.path_norm(p, order=1) * max(
        1.0, np.abs(x).max()
    )  # rounding acts on terms of this size
    np.testing.assert_allclose(
        network.forward(scaled, x), network.forward(p, x), rtol=1e-12, atol=1e-13 * size
    )
    assert network.gamma_sq_by_nodes(scaled) == pytest.approx(
        network.gamma_sq_by_nodes(p), rel=1e-12
    )


@settings(max_examples=40)
@given(drawn=networks, seed=seeds, terms=st.sampled_from(["kappa1", "kappa"]))
def test_theorem_2_a_step_after_rescaling_is_the_rescaling_of_the_step(drawn, seed, terms):
    network, rng = drawn[0], np.random.default_rng(seed)
    p, x = rng.normal(size=network.parameter_count), rng.normal(size=len(network.inputs))
    target = rng.normal(size=len(network.outputs))
    beta = draw_rescaling(network, rng, decades=1.0)

    def step(parameters):
        gradient = network.gradient(parameters, x, network.forward(parameters, x) - target)
        kappa = getattr(network, terms)(parameters)
        return np.where(kappa > 0, -0.1 * gradient / np.where(kappa > 0, kappa, 1.0), 0.0)

    # The steps are compared, not p + step, which would hide a wrong step behind a large p.
    after, before = step(rescale(network, p, beta)), rescale(network, step(p), beta)
    size = np.abs(before * np.exp(-log_factors(network, beta))).max() * np.exp(
        log_factors(network, beta)
    )
    assert (np.abs(after - before) <= 1e-9 * np.abs(before) + 1e-9 * size).all()


def test_a_plain_gradient_step_is_not_invariant():
    network, _ = build.mlp([2, 2, 1])
    rng = np.random.default_rng(0)
    p, x = np.abs(rng.normal(size=network.parameter_count)), np.ones(2)
    beta = np.ones(len(feasible_rescalings(network))) @ feasible_rescalings(network)
    scaled = rescale(network, p, beta)
    after = scaled - 0.1 * network.gradient(scaled, x, [1.0])
    before = rescale(network, p - 0.1 * network.gradient(p, x, [1.0]), beta)
    assert np.abs(after - before).max() > 1e-2


@settings(max_examples=20)
@given(
    hidden=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    steps=st.integers(1, 4),
    bias=st.booleans(),
    every_step=st.booleans(),
)
def test_theorem_1_furthermore_an_rnn_has_one_rescaling_for_each_hidden_unit(
    hidden, steps, bias, every_step
):
    network, _ = build.rnn(2, hidden, 1, steps, bias=bias, every_step=every_step)
    basis = feasible_rescalings(network)
    assert len(basis) == sum(hidden)
    for layer, units in enumerate(hidden):
        for unit in range(units):  # the theorem's form: one alpha a unit, the same at all times
            same_unit = [f"h{layer}[{t},{unit}]" for t in range(steps)]
            beta = np.array([float(name in same_unit) for name in network.names])
            np.testing.assert_allclose(basis.T @ (basis @ beta), beta, atol=1e-12)


@pytest.mark.parametrize(
    ("drawn", "dimension"),
    [
        (build.mlp([3, 4, 2, 1]), 4 + 2),
        (build.conv1d(2, 3, kernel=2, length=5), 3),
        (build.residual(2, 3, 4, 1, blocks=2), 3 + 4 + 4),
        (build.rnn(1, [2, 3], None, steps=3, every_step=True), 2),
        (build.rnn(1, [2, 3], 1, steps=3, bidirectional=True), 2 * (2 + 3)),
        (build.mlp([2, 2]), 0),
    ],
    ids=["mlp", "conv1d", "residual", "states as outputs", "bidirectional", "no hidden unit"],
)
def test_dimension_of_the_feasible_rescalings(drawn, dimension):
    assert len(feasible_rescalings(drawn[0])) == dimension


def test_an_infeasible_rescaling_is_refused():
    network, _ = build.rnn(1, [1], 1, steps=2)
    beta = np.array([float(name == "h0[1,0]") for name in network.names])
    with pytest.raises(ValueError, match="no feasible rescaling"):
        rescale(network, np.ones(network.parameter_count), beta)
    with pytest.raises(ValueError, match="one beta a node"):
        rescale(network, np.ones(network.parameter_count), [1.0])


def test_first_figure_two_hidden_layers_of_two_units_with_factors_a_b_c_d():
    a, b, c, d = 0.3, 7.0, 40.0, 0.02
    lower, upper = np.array([a, b]), np.array([c, d])
    network, layout = build.rnn(2, [2, 2], 2, steps=3, bias=False, every_step=True)
    rng = np.random.default_rng(1)
    left = {name: rng.normal(size=index.shape) for name, index in layout.items()}
    right = {
        "weight_ih_l0": left["weight_ih_l0"] * lower[:, None],
        "weight_hh_l0": left["weight_hh_l0"] * [[1, a / b], [b / a, 1]],
        "weight_ih_l1": left["weight_ih_l1"] * [[c / a, c / b], [d / a, d / b]],
        "weight_hh_l1": left["weight_hh_l1"] * [[1, c / d], [d / c, 1]],
        "out.weight": left["out.weight"] / upper,
    }
    p, transformed = pack(layout, left), pack(layout, right)
    for _ in range(5):
        x = rng.normal(size=len(network.inputs))
        np.testing.assert_allclose(
            network.forward(transformed, x), network.forward(p, x), rtol=1e-12, atol=1e-13
        )
    assert network.gamma_sq_by_paths(transformed) == pytest.approx(
        network.gamma_sq_by_paths(p), rel=1e-13
    )
    alpha = {
        f"h{k}[{t},{j}]": unit
        for k, row in enumerate((lower, upper))
        for j, unit in enumerate(row)
        for t in range(3)
    }
    beta = np.log([alpha.get(name, 1.0) for name in network.names])
    np.testing.assert_allclose(rescale(network, p, beta), transformed, rtol=1e-12)


@pytest.mark.parametrize("uses", [1, 2, 3, 4, 5])
def test_a_weight_used_k_times_on_a_chain_has_kappa_k_times_2k_minus_1(uses):
    network, layout = build.chain(uses)
    rng = np.random.default_rng(uses)
    shared, others = rng.normal(), rng.normal(size=uses + 1)
    p = pack(layout, {"shared": shared, "others": others})
    rest = shared ** (2 * uses - 2) * np.prod(others**2)
    assert unpack(layout, network.kappa(p))["shared"] == pytest.approx(uses * (2 * uses - 1) * rest)
    assert unpack(layout, network.kappa1(p))["shared"] == pytest.approx(uses * rest)
    assert unpack(layout, network.kappa2(p))["shared"] == pytest.approx(
        2 * uses * (uses - 1) * rest
    )
    assert unpack(layout, network.kappa2(p))["others"].tolist() == [0.0] * (uses + 1)


@settings(max_examples=20)
@given(
    drawn=st.one_of(
        st.builds(build.mlp, st.lists(small, min_size=2, max_size=4)),
        st.builds(
            build.conv1d,
            small,
            small,
            kernel=small,
            length=st.integers(3, 5),
            padding=st.integers(0, 2),
        ),
    ),
    seed=seeds,
)
def test_kappa2_is_exactly_zero_without_sharing_along_a_path(drawn, seed):
    network = drawn[0]
    p = np.random.default_rng(seed).normal(size=network.parameter_count)
    assert not network.kappa2(p).any()
    assert (network.kappa1(p) > 0).all()
    np.testing.assert_allclose(network.kappa(p), network.kappa1(p), rtol=1e-13)


def test_kappa2_of_an_rnn_lives_in_its_recurrent_matrices():
    network, layout = build.rnn(1, [2, 2], 1, steps=4)
    p = np.random.default_rng(5).normal(size=network.parameter_count)
    for name, value in unpack(layout, network.kappa2(p)).items():
        assert (value > 0).all() if "weight_hh" in name else not value.any(), name
