"""Wrong input gets one clear error that says what is wrong, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from support import models
from support.models import Apply, Weights
from support.snapshots import assert_unchanged, snapshot


def with_entry(value: float) -> nn.Module:
    model = models.mlp([2, 3, 1])
    with torch.no_grad():
        model[2].weight[0, 1] = value
    return model


def mixed() -> nn.Module:
    model = models.mlp([2, 3, 1])
    model[2].double()
    return model


def integers() -> nn.Module:
    model = models.mlp([2, 3, 1])
    model.steps = nn.Parameter(torch.zeros(2, dtype=torch.long), requires_grad=False)
    return model


X = torch.rand(4, 2)
CASES: dict[str, tuple[Callable[[], Any], tuple[Any, ...], type[Exception], str]] = {
    "wrong features": (lambda: models.mlp([2, 3, 1]), (torch.rand(4, 3),), ValueError,
                       r"forward failed.*\(4, 3\)"),
    "wrong features of an RNN": (lambda: models.ReadRNN(2, 3, 1), (torch.rand(5, 4, 3),),
                                 ValueError, r"\(5, 4, 3\)"),
    "inputs in one tuple": (lambda: models.mlp([2, 3, 1]), ((X, X),), ValueError,
                            "one by one, not as a tuple"),
    "wrong dimensions": (lambda: models.ReadRNN(2, 3, 1), (torch.rand(5),), ValueError,
                         "forward failed"),
    "too few inputs": (lambda: Weights(lambda m, x, y: x @ m.w + y, w=(2, 1)), (X,), ValueError,
                       "forward failed"),
    "too many inputs": (lambda: models.mlp([2, 3, 1]), (X, X), ValueError, "forward failed"),
    "an error of the model's own": (
        lambda: Weights(lambda m, x: {}["absent"], w=(2, 1)), (X,), ValueError,
        "forward failed.*absent",
    ),
    "no parameters": (lambda: nn.ReLU(), (X,), ValueError, "no parameters"),
    "not a module": (lambda: models.mlp([2, 3, 1]).forward, (X,), TypeError, "torch.nn.Module"),
    "no input": (lambda: models.mlp([2, 3, 1]), (), ValueError, "no example input"),
    "no tensor among the inputs": (lambda: models.mlp([2, 3, 1]), (3, "x"), ValueError,
                                   "no example input"),
    "NaN": (lambda: with_entry(torch.nan), (X,), ValueError, "'2.weight' has NaN or infinite"),
    "infinity": (lambda: with_entry(torch.inf), (X,), ValueError, "'2.weight' has NaN or infinite"),
    "complex parameters": (lambda: nn.Linear(2, 1).to(torch.complex64), (X,), TypeError,
                           "'weight' is torch.complex64"),
    "integer parameters": (integers, (X,), TypeError, "'steps' is torch.int64"),
    "mixed dtypes": (mixed, (X,), TypeError,
                     "mix dtypes.*'0.bias' is torch.float32, '2.bias' is torch.float64"),
    "input of another dtype": (
        lambda: models.mlp([2, 3, 1]), (X.double(),), TypeError,
        "torch.float64 but the parameters are torch.float32",
    ),
    "complex input": (lambda: models.mlp([2, 3, 1]), (X.to(torch.complex64),), TypeError,
                      "complex"),
    "empty sequence": (lambda: models.ReadRNN(2, 3, 1), (torch.rand(0, 4, 2),), ValueError,
                       r"empty .*\(0, 4, 2\)"),
    "empty batch": (lambda: models.mlp([2, 3, 1]), (torch.rand(0, 2),), ValueError, "empty"),
    "lazy parameters": (lambda: nn.LazyLinear(3), (X,), ValueError, "not initialised"),
    "an unregistered parameter": (
        lambda: Unregistered(), (X,), ValueError,
        r"shape \(2, 1\) is used in .* but not registered",
    ),
    "an infinite constant": (
        lambda: Weights(lambda m, x: x @ m.w + torch.tensor(torch.inf), w=(2, 1)), (X,), ValueError,
        "a constant of",
    ),
    "an output without paths": (
        lambda: Weights(lambda m, x: torch.zeros(x.shape), w=(2, 1)), (X,), ValueError,
        "there is no path",
    ),
    "no output tensor": (lambda: Weights(lambda m, x: "done", w=(2, 1)), (X,), ValueError,
                         "no tensor in .*a str"),
}  # fmt: skip


class Unregistered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden_away = nn.Linear(2, 2), (nn.Parameter(torch.rand(2, 1)),)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.hidden_away[0]


@pytest.mark.parametrize("name", list(CASES))
def test_the_error_says_what_is_wrong_and_nothing_changes(name: str) -> None:
    make, inputs, error, text = CASES[name]
    model = make()
    before = snapshot(model) if isinstance(model, nn.Module) and name != "lazy parameters" else None
    for measure in (pathsgd.gamma_sq, pathsgd.kappa):
        with pytest.raises(error, match=text):
            measure(model, *inputs)
    if before is not None:
        assert_unchanged(before, model)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"terms": "third"}, "terms must"),
        ({"convention": "ours"}, "convention must"),
        ({"samples": 0}, "samples must"),
    ],
)
def test_wrong_options_of_kappa(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pathsgd.kappa(models.mlp([2, 3, 1]), X, **options)


@pytest.mark.parametrize("order", [0, -1, float("inf"), float("nan")])
def test_wrong_orders_of_the_path_norm(order: float) -> None:
    with pytest.raises(ValueError, match="order must be positive"):
        pathsgd.path_norm(models.mlp([2, 3, 1]), X, order=order)


RESULTS = {
    "tuple": lambda y, z: (y, z),
    "list": lambda y, z: [y, z],
    "dict": lambda y, z: {"y": y, "z": z},
    "nested": lambda y, z: {"first": (y,), "z": z},
}


@pytest.mark.parametrize("kind", list(RESULTS))
def test_the_first_tensor_of_several_is_measured_unless_another_is_chosen(kind: str) -> None:
    model = Weights(lambda m, x: RESULTS[kind](x @ m.a, x @ m.b), a=(2, 1), b=(2, 3))
    a, b = (p.detach().double().square().sum() for p in (model.a, model.b))
    torch.testing.assert_close(pathsgd.gamma_sq(model, X), a)
    second: Any = 1 if kind in ("tuple", "list") else "z"
    torch.testing.assert_close(pathsgd.gamma_sq(model, X, output=second), b)
    pick = lambda result: list(result.values())[1] if isinstance(result, dict) else result[1]  # noqa: E731
    torch.testing.assert_close(pathsgd.gamma_sq(model, X, output=pick), b)
    with pytest.raises(ValueError, match="output='absent' does not fit what the model returned"):
        pathsgd.gamma_sq(model, X, output="absent")


def test_nonfinite_example_inputs_are_only_shapes() -> None:
    model = models.mlp([2, 3, 1])
    assert torch.equal(
        pathsgd.gamma_sq(model, torch.full((2, 2), torch.nan)), pathsgd.gamma_sq(model, X)
    )


def test_a_model_without_free_nodes_says_so() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Apply(torch.relu))
    for call in (
        pathsgd.random_rescaling,
        pathsgd.balance,
        lambda *a: pathsgd.rescale_nodes(*a, alpha=2.0),
    ):
        before = snapshot(model)
        with pytest.raises(ValueError, match="no free node"):
            call(model, X)
        assert_unchanged(before, model)


NO_MODELS: dict[str, Any] = {
    "None": None,
    "a function": lambda x: x,
    "a class": nn.Linear,
    "a tensor": X,
}
TAKE_MODELS: dict[str, Callable[[Any], Any]] = {
    "gamma_sq": lambda m: pathsgd.gamma_sq(m, X),
    "log_gamma_sq": lambda m: pathsgd.log_gamma_sq(m, X),
    "path_norm": lambda m: pathsgd.path_norm(m, X),
    "kappa": lambda m: pathsgd.kappa(m, X),
    "node_spaces": lambda m: pathsgd.node_spaces(m, X),
    "rescale_nodes": lambda m: pathsgd.rescale_nodes(m, X, alpha=torch.ones(3)),
    "random_rescaling": lambda m: pathsgd.random_rescaling(m, X),
    "balance": lambda m: pathsgd.balance(m, X),
    "check_invariance": lambda m: pathsgd.check_invariance(m, X),
    "explain": lambda m: pathsgd.explain(m, X),
    "path_normalize_grad_": lambda m: pathsgd.path_normalize_grad_(m, X),
    "wrap": lambda m: pathsgd.optim.wrap(torch.optim.SGD([nn.Parameter(X)], 0.1), m),
    "PathSGD": pathsgd.PathSGD,
    "PathAdam": pathsgd.PathAdam,
    "fuse": pathsgd.nn.fuse,
    "unfuse": pathsgd.nn.unfuse,
}


@pytest.mark.parametrize("value", NO_MODELS.values(), ids=NO_MODELS)
@pytest.mark.parametrize("function", TAKE_MODELS.values(), ids=TAKE_MODELS)
def test_what_is_no_model_is_refused(function: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"torch\.nn\.Module.*(NoneType|function|type|Linear|Tensor)"
    ):
        function(value)


OPTIONS = ["lr", "weight_decay", "eps", "clip", "growth", "refresh_every"]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_are_no_sizes_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{option} must .*{value}"):
        pathsgd.PathAdam(models.mlp([2, 3, 1]), **{option: value})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_exponents_of_the_metric_that_are_no_sizes_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"rho must .*{value}"):
        pathsgd.Metric(rho=value)
