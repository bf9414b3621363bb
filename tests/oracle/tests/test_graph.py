"""The definitions agree with each other and with derivatives taken without listing any path."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from oracle import Edge, GraphBuilder, Network, build, feasible_rescalings, rescale

seeds = st.integers(0, 2**32 - 1)


def two_path_network():
    """x0 -a-> h -b-> y, x1 -b-> y with a and b shared as shown."""
    edges = (Edge(0, 2, parameter=0), Edge(2, 3, parameter=1), Edge(1, 3, parameter=1))
    return Network(4, 2, edges, inputs=(0, 1), outputs=(3,), names=("x0", "x1", "h", "y"))


def kappa_terms_from_values(network, p, i):
    """kappa_i, kappa1_i, kappa2_i from values of gamma^2 alone, and the size of its coefficients.

    gamma^2 as a polynomial in t = (changed p_i) / p_i is recovered from its values on the unit
    circle, exactly up to rounding; its derivatives at t = 1 are the derivatives wanted, times
    powers of p_i.
    """
    depth = np.zeros(network.node_count, dtype=int)
    for v in network.topological_order:
        depth[v] = max((depth[network.edges[k].source] + 1 for k in network.incoming[v]), default=0)
    points = 2 * depth.max() + 1  # one more than the degree in p_i of any path
    values = []
    for t in np.exp(2j * np.pi * np.arange(points) / points):
        moved = p.astype(complex)
        moved[i] *= t
        values.append(network.gamma_sq_by_nodes(moved))
    in_t = np.fft.fft(values).real / points
    size = np.abs(in_t).max() / p[i] ** 2
    assert (
        np.abs(in_t[1::2]).max(initial=0.0) <= 1e-10 * np.abs(in_t).max()
    )  # even: gamma^2 depends on q = p^2
    half_second_derivative = np.polynomial.Polynomial(in_t).deriv(2)(1.0) / 2 / p[i] ** 2
    in_t_sq = np.polynomial.Polynomial(in_t[::2])
    return (
        half_second_derivative,
        in_t_sq.deriv()(1.0) / p[i] ** 2,
        2 * in_t_sq.deriv(2)(1.0) / p[i] ** 2,
        size,
    )


def test_a_network_small_enough_to_do_by_hand():
    network, p = two_path_network(), np.array([2.0, -3.0])
    assert [network.describe(path) for path in network.paths()] == ["x0 -> h -> y", "x1 -> y"]
    assert network.forward(p, [5.0, 7.0]) == pytest.approx([-3 * 10 - 3 * 7])
    assert network.forward(p, [-5.0, 7.0]) == pytest.approx([-3 * 7])
    assert network.gamma_sq_by_paths(p) == 4 * 9 + 9
    assert network.kappa1(p) == pytest.approx([9.0, 4.0 + 1.0])
    assert network.kappa2(p) == pytest.approx([0.0, 0.0])
    assert network.path_norm(p, order=1) == pytest.approx(6 + 3)
    assert network.path_flow(p) == pytest.approx([36 / 45, 9 / 45, 36 / 45, 1.0])


def test_gamma_sq_by_paths_equals_gamma_sq_by_nodes(case):
    network, _, p = case
    assert network.gamma_sq_by_paths(p) == pytest.approx(network.gamma_sq_by_nodes(p), rel=1e-13)
    assert network.gamma_sq_by_nodes(p) > 0


@settings(max_examples=40)
@given(seed=seeds, hidden=st.integers(0, 5), parameters=st.integers(1, 8))
def test_gamma_sq_by_both_definitions_on_random_graphs(seed, hidden, parameters):
    rng = np.random.default_rng(seed)
    network, _ = build.random_network(rng, hidden=hidden, parameters=parameters)
    p = rng.normal(size=parameters)
    assert network.gamma_sq_by_paths(p) == pytest.approx(network.gamma_sq_by_nodes(p), rel=1e-12)


def test_kappa_equals_derivatives_of_the_polynomial_gamma_sq(case):
    network, _, p = case
    found = np.array([network.kappa(p), network.kappa1(p), network.kappa2(p)])
    for i in range(network.parameter_count):
        *expected, size = kappa_terms_from_values(network, p, i)
        np.testing.assert_allclose(found[:, i], expected, rtol=1e-10, atol=1e-11 * size)


@settings(max_examples=25)
@given(seed=seeds, parameters=st.integers(1, 6))
def test_kappa_is_the_sum_of_its_terms_and_a_second_derivative_on_random_graphs(seed, parameters):
    rng = np.random.default_rng(seed)
    network, _ = build.random_network(rng, parameters=parameters)
    p = rng.normal(size=parameters)
    np.testing.assert_allclose(network.kappa(p), network.kappa1(p) + network.kappa2(p), rtol=1e-12)
    expected, *_, size = kappa_terms_from_values(network, p, 0)
    assert network.kappa(p)[0] == pytest.approx(expected, rel=1e-10, abs=1e-11 * size)


def test_kappa_at_zero_parameters_needs_no_division():
    network, _ = build.mlp([1, 1, 1], bias=False)
    assert network.kappa([0.0, 3.0]).tolist() == [9.0, 0.0]
    assert build.chain(2)[0].kappa1([0.0, 1.0, 1.0, 1.0]).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_kappa1_is_states_times_deltas_over_the_edges_of_a_parameter(case):
    network, _, p = case
    states, deltas = network.squared_states(p), network.squared_deltas(p)
    by_edges = [
        sum(states[e.source] * deltas[e.target] for e in network.shared_edges(i))
        for i in range(len(p))
    ]
    np.testing.assert_allclose(network.kappa1(p), by_edges, rtol=1e-12)


def test_path_flow_is_the_mass_into_a_node_times_the_mass_out_of_it(case):
    network, _, p = case
    expected = network.squared_states(p) * network.squared_deltas(p) / network.gamma_sq_by_nodes(p)
    flow = network.path_flow(p)
    np.testing.assert_allclose(flow, expected, rtol=1e-12)
    assert flow[[*network.inputs, *network.biases]].sum() == pytest.approx(1.0)
    assert flow[list(network.outputs)].sum() == pytest.approx(1.0)


def test_path_norms_of_every_order_are_unchanged_by_rescaling(case):
    network, _, p = case
    basis = feasible_rescalings(network)
    scaled = rescale(network, p, np.random.default_rng(0).normal(size=len(basis)) @ basis)
    for order in (0.5, 1.0, 2.0, 3.0):
        assert network.path_norm(scaled, order) == pytest.approx(
            network.path_norm(p, order), rel=1e-11
        )
    assert network.path_norm(p, 2) ** 2 == pytest.approx(network.gamma_sq_by_nodes(p))


def test_the_path_norm_of_order_one_bounds_the_outputs(case):
    network, _, p = case
    x = np.random.default_rng(1).uniform(-1, 1, size=len(network.inputs))
    assert np.abs(network.forward(p, x)).sum() <= network.path_norm(p, order=1) * (1 + 1e-12)
    positive = np.abs(p)
    ones = np.ones(len(network.inputs))
    if all(edge.constant is None or edge.constant > 0 for edge in network.edges):
        assert network.forward(positive, ones).sum() == pytest.approx(network.path_norm(p, order=1))


def test_gradient_equals_finite_differences(case):
    network, _, p = case
    rng = np.random.default_rng(2)
    x, direction = rng.normal(size=len(network.inputs)), rng.normal(size=len(network.outputs))
    gradient = network.gradient(p, x, direction)
    step = 1e-6
    for i, unit in enumerate(np.eye(len(p))):
        difference = network.forward(p + step * unit, x) - network.forward(p - step * unit, x)
        assert gradient[i] == pytest.approx(direction @ difference / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("cycle", {"edges": (Edge(1, 2, parameter=0), Edge(2, 1, parameter=0))}),
        ("no output", {"outputs": ()}),
        ("out of range", {"inputs": (7,)}),
        ("more than one role", {"inputs": (0,), "outputs": (0,)}),
        ("meets node 9", {"edges": (Edge(0, 9, parameter=0),)}),
        ("parameter out of range", {"edges": (Edge(0, 1, parameter=5),)}),
        ("enters an input", {"edges": (Edge(1, 0, parameter=0),)}),
        ("2 names given for 4 nodes", {"names": ("a", "b")}),
    ],
)
def test_a_malformed_network_is_refused(message, arguments):
    sound = {"edges": (Edge(0, 3, parameter=0),), "inputs": (0,), "outputs": (3,)}
    with pytest.raises(ValueError, match=message):
        Network(4, 1, **{**sound, **arguments})


@pytest.mark.parametrize("weight", [{}, {"parameter": 0, "constant": 1.0}])
def test_an_edge_has_either_a_parameter_or_a_constant(weight):
    with pytest.raises(ValueError, match="either a parameter index or a constant"):
        Edge(0, 1, **weight)


def test_wrong_vectors_are_refused():
    network = two_path_network()
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        network.gamma_sq_by_nodes([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"parameters \[1\] are not finite"):
        network.kappa([1.0, np.nan])
    with pytest.raises(ValueError, match=r"input of shape \(2,\), got \(1,\)"):
        network.forward([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="order"):
        network.path_norm([1.0, 2.0], order=0)
    with pytest.raises(ValueError, match="weight zero"):
        network.path_flow([0.0, 0.0])


def test_constant_edges_carry_paths_but_no_kappa():
    draw = GraphBuilder()
    x, y, w = draw.inputs("x", 4), draw.outputs("y", 1), draw.parameter("w", 1, 1)
    mean = draw.hidden("mean", 1, linear=True)
    for source in x:
        draw.constant(source, mean[0], 0.25)
    draw.dense(mean, y, w)
    network, _ = draw.finish()
    assert network.forward([2.0], [1.0, -2.0, 3.0, -6.0]) == pytest.approx(
        [-2.0]
    )  # linear: not cut off at zero
    assert network.gamma_sq_by_paths([2.0]) == pytest.approx(4 * 0.25**2 * 4)
    assert network.kappa([2.0]) == pytest.approx([4 * 0.25**2])


def test_the_oracle_imports_nothing_but_numpy_and_the_standard_library():
    folder = Path(oracle.__file__).parent
    allowed = {
        "numpy",
        "argparse",
        "collections",
        "dataclasses",
        "functools",
        "itertools",
        "typing",
        "__future__",
    }
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported = {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{file.name} reaches outside oracle"
                imported = set() if node.level else {str(node.module).split(".")[0]}
            else:
                continue
            assert imported <= allowed, f"{file.name} imports {imported - allowed}"
