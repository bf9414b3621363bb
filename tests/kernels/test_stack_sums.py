"""Sums over a stack of recurrent layers in one native call, against torch's operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd.kernels import native
from pathsgd.kernels.stack_sums import stack_sums
from pathsgd.kernels.whiten import dense
from pathsgd.paths import recurrent_stack as stack
from pathsgd.paths.match import Cell, StackNet


def net_of(
    layers: int,
    directions: int,
    hidden: int,
    steps: int,
    last: bool,
    bias: bool,
    embedded: bool,
    dtype: torch.dtype,
) -> tuple[StackNet, dict[str, torch.Tensor]]:
    parameters: dict[str, torch.Tensor] = {}

    def new(name: str, *shape: int) -> str:
        parameters[name] = torch.randn(shape, dtype=dtype) / max(1, shape[-1]) ** 0.5
        return name

    cells = []
    for layer in range(layers):
        inputs = 3 if layer == 0 else directions * hidden
        cells.append(
            tuple(
                Cell(
                    new(f"in{layer}{d}", hidden, inputs),
                    new(f"rec{layer}{d}", hidden, hidden),
                    tuple(new(f"{b}{layer}{d}", hidden) for b in ("b", "c")[: 2 * bias]),
                )
                for d in range(directions)
            )
        )
    reads = ((steps - 1,) * directions) if last else (None,) * directions
    net = StackNet(
        tuple(cells), new("out", 2, directions * hidden), new("b_out", 2) if bias else None,
        new("embedding", 7, 3) if embedded else None, steps, reads,
    )  # fmt: skip
    return net, parameters


@settings(max_examples=40)
@given(
    layers=st.integers(1, 3),
    directions=st.integers(1, 2),
    hidden=st.sampled_from([1, 2, 9, 33]),
    steps=st.sampled_from([1, 2, 5, 40]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    fades=st.booleans(),
    root=st.sampled_from([None, 1.0, 1.7]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**20),
)
def test_both_ways_agree(
    kernel, layers, directions, hidden, steps, flags, fades, root, dtype, seed
) -> None:
    torch.manual_seed(seed)
    net, parameters = net_of(layers, directions, hidden, steps, *flags, dtype)
    for name in parameters if fades else ():  # so that states stand still after some steps
        parameters[name] *= 0.2 if name.startswith("rec") else 1.0
    fast = stack._measured(net, parameters, root, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "accepts", lambda *tensors: False)
        slow = stack._measured(net, parameters, root, dtype)
    assert (slow is None) == (fast is None)
    if slow is None or fast is None:
        return
    rtol = 1e-4 if dtype is torch.float32 else 1e-11
    assert fast.kappa1.keys() == slow.kappa1.keys() and fast.flow.keys() == slow.flow.keys()
    assert fast.log_gamma_sq == pytest.approx(slow.log_gamma_sq, rel=rtol, abs=rtol)
    assert fast.next_root == pytest.approx(slow.next_root, rel=rtol)
    for name, kappa in slow.kappa1.items():
        torch.testing.assert_close(dense(fast.kappa1[name]), dense(kappa), rtol=rtol, atol=0)
    for name, flow in slow.flow.items():
        torch.testing.assert_close(fast.flow[name], flow, rtol=rtol, atol=0)


def test_what_leaves_the_range_has_no_result(kernel) -> None:
    torch.manual_seed(0)
    net, parameters = net_of(2, 1, 4, 40, True, True, False, torch.float32)
    for value in (torch.inf, torch.nan, 1e30):
        changed = {**parameters, "in10": parameters["in10"].clone()}
        changed["in10"][1, 2] = value
        assert stack._measured(net, changed, 1.5, torch.float32) is None


def test_the_border(kernel) -> None:
    torch.manual_seed(0)
    net, parameters = net_of(2, 2, 4, 5, True, True, False, torch.float32)
    layers = [[stack._weights(parameters, cell) for cell in layer] for layer in net.layers]
    rest = parameters["out"], None, None, 5
    with pytest.raises(ValueError, match="steps below 5"):
        stack_sums(layers, *rest, (4, 5), 1.0, [False, False], (0.0, 1.0))
    if kernel == "torch":
        return
    with pytest.raises(ValueError, match="of shape"):
        stack_sums(layers[:1] + layers[:1], *rest, (4, 4), 1.0, [False, False], (0.0, 1.0))
    with pytest.raises(ValueError, match="of shape"):
        stack_sums(
            layers,
            parameters["out"][:, :4].contiguous(),
            None,
            None,
            5,
            (4, 4),
            1.0,
            [False] * 2,
            (0.0, 1.0),
        )
