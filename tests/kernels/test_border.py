"""Only plain, dense CPU tensors of the right size reach C++."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from pathsgd import kernels
from pathsgd.kernels import native
from pathsgd.kernels.correct_direction import correct_direction
from pathsgd.kernels.cross_entropy import cross_entropy
from pathsgd.kernels.follow_directions import Directions, Map, follow_directions
from pathsgd.kernels.layout import Layout
from pathsgd.kernels.linear_sweep import linear_sweep
from pathsgd.kernels.mean_log import mean_log
from pathsgd.kernels.narrow import narrow
from pathsgd.kernels.plain_sums import plain_sums
from pathsgd.kernels.rank_one_sum import rank_one_sum
from pathsgd.kernels.recurrent_gradient import recurrent_gradient
from pathsgd.kernels.rnn_backward import Needs, rnn_backward
from pathsgd.kernels.rnn_forward import rnn_forward
from pathsgd.kernels.row_lengths import row_lengths
from pathsgd.kernels.spectral_norm import spectral_norm
from pathsgd.kernels.squared_convolution import Sliding, squared_convolution_backward
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.squared_sequences import squared_sequences
from pathsgd.kernels.squares import squares
from pathsgd.kernels.stack_sums import stack_sums
from pathsgd.kernels.update import ADAM, Operands, Update, UpdateRule
from pathsgd.kernels.whiten import Lines, WhitenRequest, flow_sides, whiten
from support import device

RULE = UpdateRule(ADAM, betas=(0.9, 0.99), eps=1e-8)


class Subclass(Tensor):
    """Torch's own behaviour, under another name."""


def call_rnn_forward(x: Tensor, h0: Tensor, w_in: Tensor, w_rec: Tensor) -> Any:
    states, last = torch.zeros_like(x).repeat(1, 1, 2)[..., :4].contiguous(), torch.zeros_like(h0)
    rnn_forward(x, h0, [w_in, w_rec], Layout(3, 2), 0, states, last)
    return states, last


def call_rnn_backward(
    x: Tensor, h0: Tensor, w_in: Tensor, w_rec: Tensor, states: Tensor, d_states: Tensor
) -> Any:
    needs = Needs(True, True, True, True, True)
    return rnn_backward(d_states, None, x, h0, states, [w_in, w_rec], Layout(3, 2), 0, needs)


def call_cross_entropy(rows: Tensor, weight: Tensor, bias: Tensor) -> Any:
    target = torch.tensor([0, 2, 1])
    return cross_entropy(rows, weight, bias, target, True, -100, 2, (True, True, True))


def call_plain_sums(
    w_in: Tensor, w_rec: Tensor, b_in: Tensor, b_rec: Tensor, w_out: Tensor, b_out: Tensor
) -> Any:
    return plain_sums(w_in, None, w_rec, [b_in, b_rec], w_out, b_out, 5, True, 0.7, torch.float32)


def call_stack_sums(
    w_in: Tensor, w_rec: Tensor, bias: Tensor, upper: Tensor, w_out: Tensor, b_out: Tensor
) -> Any:
    layers = [[(w_in, w_rec, [bias])], [(upper, w_rec, [])]]
    sums = stack_sums(layers, w_out, b_out, None, 5, (None,), 0.7, [False], (1e-200, 1e200))
    return sums.cells[1], sums.cells[0][:3], sums.out


def call_rank_one_sum(A: Tensor, before: Tensor, delta: Tensor) -> Any:
    total = rank_one_sum(A, before, delta, 1e-3, adjoint=False)
    assert total is not None
    return total


def call_follow_directions(weight: Tensor, scale: Tensor, rays: Tensor) -> Any:
    age, mean = torch.zeros(2), torch.zeros(2)
    directions = Directions(rays, age, mean, scale * 0, 2)
    return follow_directions(Map(weight, scale), directions), directions.rays


def call_correct_direction(weight: Tensor, scale: Tensor, ray: Tensor, start: Tensor) -> Any:
    return correct_direction(Map(weight, scale), ray, start, torch.tensor(2.0), 1.5), weight


def call_whiten(kappa: Tensor, out: Tensor, into: Tensor) -> Any:
    lines = Lines(3, 4, 1, row_out=torch.tensor([1, 2, 3]), column_into=torch.tensor([4, 3, 2, 1]))
    return whiten([WhitenRequest(kappa, lines)], (out, into), 2.0, torch.float32)


@torch.no_grad()
def update(p: Tensor, grad: Tensor, w: Tensor, first: Tensor, second: Tensor) -> Any:
    step = Update(Operands([p], [grad], [w], [first], [second]))
    sums = step.square_sums()
    step.moments(RULE)
    direction = step.direction(RULE, 0)
    step.apply(RULE, -0.1, 0.9)
    return sums, direction, p, first, second


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return lambda: torch.rand(shape, dtype=dtype)


double = torch.float64
OPERATIONS: dict[str, tuple[Callable[..., Any], list[Callable[[], Tensor]]]] = {
    "rnn_forward": (call_rnn_forward, [rand(3, 2, 3), rand(1, 2, 4), rand(4, 3), rand(4, 4)]),
    "rnn_backward": (
        call_rnn_backward,
        [rand(3, 2, 3), rand(1, 2, 4), rand(4, 3), rand(4, 4), rand(3, 2, 4), rand(3, 2, 4)],
    ),
    "recurrent_gradient": (
        lambda dz, states, h0: recurrent_gradient(dz, states, h0, Layout(3, 2), 0),
        [rand(6, 4), rand(3, 2, 4), rand(1, 2, 4)],
    ),
    "cross_entropy": (call_cross_entropy, [rand(3, 5), rand(4, 5), rand(4)]),
    "squared_sequences": (
        lambda *t: squared_sequences(*t, 6, True, 0.7),
        [rand(4, 4), rand(4), rand(4)],
    ),
    "squared_products": (
        squared_products,
        [rand(3, 4), rand(4, dtype=double), rand(3, dtype=double)],
    ),
    "squared_convolution": (
        lambda *t: squared_convolution_backward(*t, Sliding()),
        [rand(3, 2, 2, 2), rand(2, 4, 4), rand(3, 3, 3)],
    ),
    "flow_sides": (
        lambda flow, least: flow_sides(flow, least, 0.25),
        [rand(5, dtype=double), rand(5, dtype=double)],
    ),
    "linear_sweep": (
        linear_sweep,
        [rand(4, 4), rand(3, 2, 4), rand(2, 4), rand(3, dtype=double)],
    ),
    "rank_one_sum": (
        call_rank_one_sum,
        [
            lambda: torch.rand(4, 4, dtype=double) + 0.5,
            rand(20, 4, dtype=double),
            rand(20, 4, dtype=double),
        ],
    ),
    "mean_log": (mean_log, [lambda: rand(3, 4)().abs() + 0.1]),
    "squares": (squares, [rand(3, 4)]),
    "narrow": (narrow, [rand(3, 4, dtype=double)]),
    "row_lengths": (row_lengths, [rand(3, 4)] * 2),
    "plain_sums": (
        call_plain_sums,
        [rand(4, 3), rand(4, 4), rand(4), rand(4), rand(2, 4), rand(2)],
    ),
    "stack_sums": (
        call_stack_sums,
        [rand(4, 3), rand(4, 4), rand(4), rand(4, 4), rand(2, 4), rand(2)],
    ),
    "spectral_norm": (lambda m, v: spectral_norm(m, v, 3), [rand(4, 3), rand(3)]),
    "whiten": (call_whiten, [rand(3, 4), rand(5, dtype=double), rand(5, dtype=double)]),
    "follow_directions": (call_follow_directions, [rand(4, 4), rand(4), rand(2, 4)]),
    "correct_direction": (call_correct_direction, [rand(4, 4), rand(4), rand(4), rand(4)]),
    "update": (update, [rand(3, 4)] * 5),
}

FOREIGN: dict[str, Callable[[Tensor], Tensor]] = {
    "meta": lambda t: t.to("meta"),
    "another device": lambda t: t.to(device.DEVICE),
    "a subclass": lambda t: t.as_subclass(Subclass),
    "fake": FakeTensorMode().from_tensor,
    "sparse": Tensor.to_sparse,
    "half": Tensor.half,
    "a negated view": lambda t: torch._neg_view(-t),
    "part of a conjugate view": lambda t: torch.complex(torch.zeros_like(t), -t).conj().imag,
    "of another library": lambda t: t.float().to_mkldnn(),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "functional": torch._to_functional_tensor,
    "integers": Tensor.long,
    "spread over processes": lambda t: DTensor.from_local(
        t, init_device_mesh("cpu", (1,)), [Replicate()]
    ),
}


SAME = "a subclass", "a negated view", "part of a conjugate view"
"""Kinds that have the same numbers, and are to have the same results."""


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """Of this process alone: tensors are spread over a group of processes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


ARGUMENTS = [(name, i) for name, (_, makers) in OPERATIONS.items() for i in range(len(makers))]


def test_no_operation_is_forgotten() -> None:
    folder = Path(kernels.__file__).parent
    files = {path.stem for path in (folder / "src").glob("*.cpp")} - {"kernel", "threads"}
    assert files <= {path.stem for path in folder.glob("*.py")}
    assert set(OPERATIONS) == files | {"flow_sides"}  # in whiten.py


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that were asked of the kernel."""
    names: list[str] = []
    original = native.call
    monkeypatch.setattr(
        native, "call", lambda name, *a: (names.append(name), original(name, *a))[1]
    )
    return names


def given(name: str) -> list[Tensor]:
    torch.manual_seed(0)
    return [make() for make in OPERATIONS[name][1]]


def results(name: str, tensors: list[Tensor]) -> list[Any]:
    return torch.utils._pytree.tree_leaves(OPERATIONS[name][0](*tensors))


@pytest.mark.parametrize("name", OPERATIONS)
def test_plain_tensors_reach_the_kernel(name: str, kernel: str, called: list[str]) -> None:
    found = results(name, given(name))
    assert bool(called) == (kernel != "torch")
    assert all(t.isfinite().all() for t in found if isinstance(t, Tensor))


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
@pytest.mark.parametrize("kind", FOREIGN)
def test_others_do_not(name: str, argument: int, kind: str, called: list[str]) -> None:
    """Torch computes the same, or says what it thinks of such a mixture."""
    expected = results(name, given(name))
    del called[:]
    tensors = given(name)
    tensors[argument] = FOREIGN[kind](tensors[argument])
    try:
        found = results(name, tensors)
    except Exception:
        assert kind not in SAME
    else:
        if kind in SAME:
            same = [
                t.as_subclass(Tensor).resolve_neg() if isinstance(t, Tensor) else t for t in found
            ]
            torch.testing.assert_close(same, expected)
    if (
        kind == "part of a conjugate view"
    ):  # an operation may have made it dense, and with that plain
        return
    own = {"recurrent_gradient"}  # after the layer's sweep back, of tensors that are all its own
    if (name, argument, kind) == ("rnn_backward", 2, "half"):
        own.add(name)  # the sweep itself has no use for w_in
    assert not set(called) - own


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_wrappers_of_transforms_do_not(name: str, argument: int, called: list[str]) -> None:
    tensors = given(name)

    def of_one(t: Tensor) -> Any:
        return results(name, [*tensors[:argument], t, *tensors[argument + 1 :]])[-1]

    with contextlib.suppress(RuntimeError, ValueError):  # vmap has no items and no out=
        torch.func.vmap(of_one)(tensors[argument][None])
    assert not called or (name, argument) == (
        "rnn_backward",
        2,
    )  # w_in, for which its kernel has no use


@torch.no_grad()
def change(step: Update, tensors: Operands, how: Callable[[Tensor], Tensor]) -> list[list[Tensor]]:
    """A step, a change of the first parameter's memory, and two more steps.

    Everything afterwards.
    """
    for i in range(3):
        step.renew([torch.full_like(p, 0.5 + i) for p in tensors.parameters])
        step.square_sums()
        step.moments(RULE)
        step.apply(RULE, -0.1, 1.0)
        if i == 0:
            tensors.parameters[0].data = how(tensors.parameters[0].data)
    return [
        [t.detach().clone() for t in kind]
        for kind in (tensors.parameters, tensors.first, tensors.second)
    ]


def operands(shape: tuple[int, ...]) -> Operands:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.rand(s)) for s in (shape, (7,))]
    w = [torch.rand(p.shape) for p in parameters]
    return Operands(
        parameters,
        [torch.zeros_like(p) for p in parameters],
        w,
        *([t * 0 for t in w] for _ in range(2)),
    )


RELAID: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "moved": ((5, 5), Tensor.clone),
    "transposed in memory": ((5, 5), lambda t: t.t().contiguous().t()),
    "channels last": ((2, 3, 4, 4), lambda t: t.to(memory_format=torch.channels_last)),
    "every second number": ((5, 5), lambda t: torch.stack([t, t], -1)[..., 0]),
}


@pytest.mark.parametrize("kind", RELAID)
def test_a_parameter_laid_out_anew_after_the_first_step(kind: str, kernel: str) -> None:
    shape, how = RELAID[kind]
    expected = change(Update(o := operands(shape)), o, lambda t: t)
    found = change(Update(o := operands(shape)), o, how)
    torch.testing.assert_close(found, expected)


SMALLER: dict[str, Callable[[Tensor], Tensor]] = {
    "fewer rows": lambda t: t[:2],
    "one number": lambda t: t[:1, :1],
    "empty": lambda t: t[:0],
    "another shape": lambda t: t.reshape(-1),
    "more rows": lambda t: torch.cat([t, t]),
}


@pytest.mark.parametrize("kind", SMALLER)
def test_a_parameter_of_another_size_is_refused(kind: str, kernel: str) -> None:
    o = operands((6, 5))
    kept = [t.clone() for t in (*o.first, *o.second)]
    with pytest.raises(ValueError, match=r"parameter 0 has shape .* and its whitening \(6, 5\)"):
        change(Update(o), o, SMALLER[kind])
    assert all(a.shape == b.shape for a, b in zip(kept, (*o.first, *o.second)))


@pytest.mark.parametrize("family", ["whitenings", "first", "second"])
def test_states_of_another_size_are_refused(family: str, kernel: str) -> None:
    o = operands((6, 5))
    setattr(o, family, [torch.rand(2, 5), getattr(o, family)[1]])
    with pytest.raises(ValueError, match=r"parameter 0 has shape \(6, 5\) and its .* \(2, 5\)"):
        Update(o)


@pytest.mark.parametrize("family", ["whitenings", "first", "second"])
def test_states_that_shrink_between_steps_are_refused(family: str, kernel: str) -> None:
    o = operands((6, 5))
    step = Update(o)
    step.renew(o.gradients)
    getattr(o, family)[0].data = torch.rand(2, 5)
    with pytest.raises(ValueError, match=r"parameter 0 has shape \(6, 5\) and its .* \(2, 5\)"):
        step.renew(o.gradients)


def test_a_parameter_of_another_type_is_torchs_affair(called: list[str]) -> None:
    o = operands((6, 5))
    step = Update(o)
    for p in o.parameters:
        p.data = p.data.double()
    del called[:]
    step.renew([torch.zeros_like(p) for p in o.parameters])
    assert step.square_sums() == [0.0, 0.0] and not called


def test_memory_that_was_given_away_is_not_read(called: list[str]) -> None:
    """As FSDP leaves a parameter between two steps: the shape is there, the memory is not."""
    matrix = torch.rand(4, 4)
    matrix.untyped_storage().resize_(0)
    assert not native.accepts(matrix)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.rand(3, 5), r"shape \(4, 5\), not torch.float32 \(3, 5\)"),
        (
            torch.rand(4, 5, dtype=double),
            r"contiguous torch.float32 CPU tensor .* not torch.float64",
        ),
        (torch.rand(5, 4).t(), r"with strides \(1, 4\)"),
        (torch.rand(4, 5, device="meta"), "on meta"),
    ],
)
def test_an_address_is_given_for_what_was_asked_only(wrong: Tensor, message: str) -> None:
    assert native.address(torch.rand(4, 5), torch.float32, 4, 5)
    with pytest.raises(ValueError, match=message):
        native.address(wrong, torch.float32, 4, 5)
