"""What is wrong with the paper's printed formulas for kappa2, one test for each."""

import numpy as np
import pytest

from oracle import (
    GraphBuilder,
    SquaredRNN,
    build,
    kappa2_footnote,
    kappa2_lemma,
    kappa2_theorem,
    unpack,
)


def squared_recurrence(steps, every_step, units=3, seed=0):
    """A small RNN: its enumerated kappa2(W_rec), A, the squared states and the deltas."""
    network, layout = build.rnn(2, [units], 2, steps, bias=False, every_step=every_step)
    p = np.random.default_rng(seed).normal(size=network.parameter_count)
    w = unpack(layout, p)
    net = SquaredRNN.from_weights(
        w["weight_ih_l0"], w["weight_hh_l0"], w["out.weight"], steps, every_step
    )
    return (
        unpack(layout, network.kappa2(p))["weight_hh_l0"],
        net.recurrent_sq,
        net.states(),
        net.deltas(),
    )


def test_erratum_two_edges_sharing_p_have_kappa_6_p_squared_where_the_lemma_gives_4():
    draw = GraphBuilder()
    p = draw.parameter("p", 1, 1)
    x, h, y = draw.inputs("x", 1), draw.hidden("h", 1), draw.outputs("y", 1)
    draw.dense(x, h, p)
    draw.dense(h, y, p)
    network, _ = draw.finish()
    assert network.gamma_sq_by_paths([1.5]) == pytest.approx(1.5**4)
    assert network.kappa([1.5]) == pytest.approx([6 * 1.5**2])
    assert network.kappa1([1.5]) + kappa2_lemma(network, [1.5]) == pytest.approx([4 * 1.5**2])


def test_erratum_lemma_lacks_exactly_the_factor_two(case):
    network, _, p = case
    np.testing.assert_allclose(2 * kappa2_lemma(network, p), network.kappa2(p), rtol=1e-12)


def test_erratum_theorem_3_lacks_exactly_the_factor_four(case):
    network, _, p = case
    np.testing.assert_allclose(4 * kappa2_theorem(network, p), network.kappa2(p), rtol=1e-12)


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_erratum_footnote_is_exactly_a_quarter_after_correcting_its_index(steps, every_step):
    exact, *recurrence = squared_recurrence(steps, every_step)
    assert exact.any() == (steps > 2)
    np.testing.assert_allclose(4 * kappa2_footnote(*recurrence), exact, rtol=1e-12)


@pytest.mark.parametrize("every_step", [True, False])
def test_erratum_footnote_as_printed_is_no_multiple_of_kappa2(every_step):
    exact, *recurrence = squared_recurrence(4, every_step)
    ratio = kappa2_footnote(*recurrence, corrected=False) / exact
    assert ratio.max() / ratio.min() > 1.1


@pytest.mark.parametrize("layer", [0, 1])
def test_the_footnote_needs_only_the_states_and_deltas_of_its_own_layer(layer):
    steps, units = 4, 2
    network, layout = build.rnn(1, [units, units], 1, steps)
    p = np.random.default_rng(1).normal(size=network.parameter_count)
    nodes = [
        [network.names.index(f"h{layer}[{t},{j}]") for j in range(units)] for t in range(steps)
    ]
    states, deltas = network.squared_states(p)[nodes], network.squared_deltas(p)[nodes]
    recurrent = f"weight_hh_l{layer}"
    footnote = kappa2_footnote(unpack(layout, p)[recurrent] ** 2, states, deltas)
    np.testing.assert_allclose(
        4 * footnote, unpack(layout, network.kappa2(p))[recurrent], rtol=1e-12
    )
