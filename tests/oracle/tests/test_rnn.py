"""Closed forms of a single-layer RNN against enumeration of its unfolded graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import SquaredRNN, build, unpack


@settings(max_examples=30)
@given(
    inputs=st.integers(1, 2),
    units=st.integers(1, 3),
    outputs=st.integers(1, 2),
    steps=st.integers(1, 4),
    bias=st.booleans(),
    every_step=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_closed_forms_equal_path_enumeration(inputs, units, outputs, steps, bias, every_step, seed):
    network, layout = build.rnn(inputs, [units], outputs, steps, bias, every_step)
    p = np.random.default_rng(seed).normal(size=network.parameter_count)
    w, kappa1, kappa2 = (
        unpack(layout, vector) for vector in (p, network.kappa1(p), network.kappa2(p))
    )
    biases = (w["bias_ih_l0"], w["bias_hh_l0"]) if bias else ()
    net = SquaredRNN.from_weights(
        w["weight_ih_l0"], w["weight_hh_l0"], w["out.weight"], steps, every_step, biases
    )

    read = steps if every_step else 1
    output_bias_paths = read * (w["out.bias"] ** 2).sum() if bias else 0.0
    assert net.gamma_sq() + output_bias_paths == pytest.approx(
        network.gamma_sq_by_paths(p), rel=1e-12
    )
    np.testing.assert_allclose(net.kappa1_recurrent(), kappa1["weight_hh_l0"], rtol=1e-12)
    np.testing.assert_allclose(net.kappa2_recurrent("exact"), kappa2["weight_hh_l0"], rtol=1e-12)
    np.testing.assert_allclose(
        4 * net.kappa2_recurrent("paper"), kappa2["weight_hh_l0"], rtol=1e-12
    )
    for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0") if bias else ("weight_ih_l0",):
        expected = kappa1[name].reshape(units, -1)
        np.testing.assert_allclose(
            np.broadcast_to(net.kappa1_input()[:, None], expected.shape), expected, rtol=1e-12
        )
    expected = kappa1["out.weight"]
    np.testing.assert_allclose(
        np.broadcast_to(net.kappa1_output(), expected.shape), expected, rtol=1e-12
    )


@pytest.mark.parametrize(("every_step", "slope"), [(False, 4 / 3), (True, 1.0)])
@pytest.mark.parametrize("steps", [3, 10, 100])
def test_identity_recurrence_has_kappa2_over_kappa1_proportional_to_the_number_of_steps(
    steps, every_step, slope
):
    rng = np.random.default_rng(0)
    net = SquaredRNN(np.eye(4), rng.uniform(size=4), rng.uniform(size=4), steps, every_step)
    ratio = np.diag(net.kappa2_recurrent()) / np.diag(net.kappa1_recurrent())
    np.testing.assert_allclose(ratio, slope * (steps - 2), rtol=1e-12)


def test_bad_arguments_are_refused():
    square, vector = np.eye(2), np.ones(2)
    with pytest.raises(ValueError, match="at least one time step"):
        SquaredRNN(square, vector, vector, 0, True)
    with pytest.raises(ValueError, match=r"expected shapes \(H, H\)"):
        SquaredRNN(square, np.ones(3), vector, 2, True)
    with pytest.raises(ValueError, match='"exact" or "paper"'):
        SquaredRNN(square, vector, vector, 4, True).kappa2_recurrent("half")
