"""What is not a path network is refused by name, place and advice; nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathsgd
from pathsgd.network.rules import REFUSED, RULES
from support import models
from support.models import Apply, Weights


def after_a_layer(operation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), operation)


def unit(function: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: after_a_layer(Apply(function))


class OnSteps(nn.Module):
    """A recurrent layer that is not a ReLU RNN, on (B, 4) as one sequence."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, None])[0]


MODELS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    # name: (model, a part of the operation's name, a part of the advice)
    "tanh": (lambda: after_a_layer(nn.Tanh()), "tanh", "saturates"),
    "sigmoid": (lambda: after_a_layer(nn.Sigmoid()), "sigmoid", "saturates"),
    "relu6": (lambda: after_a_layer(nn.ReLU6()), "hardtanh", "saturates"),
    "hardtanh": (lambda: after_a_layer(nn.Hardtanh()), "hardtanh", "saturates"),
    "clamp to one": (unit(lambda h: h.clamp(0, 1)), "clamp", "saturate"),
    "gelu": (lambda: after_a_layer(nn.GELU()), "gelu", "homogeneous"),
    "softmax": (lambda: after_a_layer(nn.Softmax(-1)), "softmax", "leave it to the loss"),
    "layer norm": (lambda: after_a_layer(nn.LayerNorm(4)), "layer_norm", "batch_norm"),
    "group norm": (lambda: after_a_layer(nn.GroupNorm(2, 4)), "group_norm", "statistics"),
    "lstm": (lambda: OnSteps(nn.LSTM(4, 2)), "lstm", "nonlinearity='relu'"),
    "gru": (lambda: OnSteps(nn.GRU(4, 2)), "gru", "nonlinearity='relu'"),
    "tanh rnn": (lambda: OnSteps(nn.RNN(4, 2)), "rnn_tanh", "nonlinearity='relu'"),
    "lstm cell": (lambda: OnSteps(nn.Sequential(nn.Flatten(), nn.LSTMCell(4, 2))), "lstm_cell",
                  "gates"),
    "attention": (lambda: Attention(), "multi_head_attention_forward", "not paths"),
    "bilinear": (lambda: Weights(lambda m, x: F.bilinear(x, x, m.w), w=(2, 4, 4)), "bilinear",
                 "not paths"),
    "product of activations": (unit(lambda h: h * h), "mul", "two activations"),
    "matrix product of activations": (unit(lambda h: h @ h.T), "matmul", "two activations"),
    "einsum of activations": (unit(lambda h: torch.einsum("bi,bj->bij", h, h)), "einsum",
                              "two activations"),
    "power": (unit(lambda h: h**2), "pow", "homogeneous"),
    "one over": (unit(lambda h: 1 / h), "__rtruediv__", "constant"),
    "division by activations": (unit(lambda h: h / h.sum()), "div", "constant"),
    "division by zero": (unit(lambda h: h / 0), "div", "zero"),
    "rounding division": (unit(lambda h: h.div(2, rounding_mode="floor")), "div", "rounding"),
    "largest entries": (unit(lambda h: h.topk(2).values), "topk", "largest"),
    "length": (unit(lambda h: h.norm(dim=1, keepdim=True)), "norm", "root or a sum of squares"),
    "spread": (unit(lambda h: h.std(1, keepdim=True)), "std", "root or a sum of squares"),
    "max pool with indices": (
        unit(lambda h: F.max_pool1d(h[:, None], 2, return_indices=True)[0]), "max_pool1d",
        "return_indices",
    ),
    "nonzero padding": (unit(lambda h: F.pad(h, (1, 1), value=2.0)), "pad", "pad with 0"),
    "nonzero mask": (unit(lambda h: h.masked_fill(torch.ones(4) > 0, -1.0)), "masked_fill",
                     "fill with 0"),
    "threshold": (unit(lambda h: F.threshold(h, 0.5, 0)), "threshold", "use relu"),
    "second differences": (unit(lambda h: h.diff(2)), "diff", "first differences"),
    "learnt mixture": (lambda: Weights(lambda m, x: torch.lerp(x, 2 * x, m.w), w=(4,)), "lerp",
                       "two products"),
    "product at places": (
        unit(lambda h: h.scatter_reduce(1, torch.zeros(1, 4, dtype=torch.long), h, "prod")),
        "scatter_reduce", "'sum'",
    ),
    "branch on a value": (unit(lambda h: h if h.sum() > 0 else -h), "gt", "branch on shapes"),
    "a value leaving": (unit(lambda h: h * h.mean().item()), "item", "branch on shapes"),
    "condition on values": (unit(lambda h: torch.where(h > 0, h, 0 * h)), "gt", "constants"),
    "spectral norm": (
        lambda: after_a_layer(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
        "SpectralNorm", "bound_gr",
    ),
    "derivatives inside forward": (
        unit(lambda h: torch.autograd.grad(h.sum(), h)[0]), "autograd.grad", "in the loss",
    ),
    "unknown operation": (unit(lambda h: h.erfinv()), "erfinv", "add a rule"),
    "low-level operation": (unit(lambda h: torch.ops.aten.relu(h)), "aten.relu", "add a rule"),
    "torch.batch_norm": (
        unit(lambda h: torch.batch_norm(h, None, None, torch.zeros(4), torch.ones(4), False, 0.1,
            1e-5, False)),
        "torch.batch_norm", "torch.nn.functional",
    ),
    "im2col": (unit(lambda h: F.unfold(h.reshape(-1, 1, 2, 2), 2)), "unfold", "convolution"),
    "out argument": (unit(lambda h: torch.add(h, 1, out=torch.zeros(1, 4))), "add", "out="),
    "an unknown form of call": (
        lambda: Weights(lambda m, x: torch.addmm(m.b, mat1=x, mat2=m.w), w=(4, 2), b=(2,)), "addmm",
        "position",
    ),
    "input changed in place": (
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1)), "in place", "out-of-place",
    ),
    "view changed in place": (unit(lambda h: (h, h[:, :2].relu_())[0]), "in place", "view"),
    "parameter changed in place": (
        lambda: Weights(lambda m, x: x @ m.w.detach().mul_(0.5), w=(4, 1)), "in place",
        "through a view",
    ),
    "parameter changed in place, in earnest": (
        lambda: Weights(lambda m, x: x @ m.w.mul_(0.5), w=(4, 1)), "in place", "parameters",
    ),
    "plain tensor changed in place": (unit(lambda h: torch.zeros(2, 4)[:1].add_(h)), "in place",
                                      "torch.stack"),
    "stale view of a collecting tensor": (unit(lambda h: stale_view(h)), "add", "view of a tensor"),
    "embedding with max_norm": (
        lambda: nn.Sequential(Apply(lambda x: torch.zeros(1, 2, dtype=torch.long)),
                              nn.Embedding(3, 2, max_norm=1.0)),
        "embedding", "max_norm",
    ),
    "embedding bag, max": (
        lambda: nn.Sequential(Apply(lambda x: torch.zeros(1, 2, dtype=torch.long)),
                              nn.EmbeddingBag(3, 2, mode="max")),
        "embedding_bag", "mode='sum'",
    ),
}  # fmt: skip


def stale_view(h: Tensor) -> Tensor:
    collected = torch.zeros(h.shape[0], 4, dtype=h.dtype)
    view = collected[:, :2]
    collected[:, :] = h
    return h + (view + 1).sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("name", list(MODELS))
def test_it_is_refused_with_its_name_and_advice(name: str) -> None:
    make, operation, advice = MODELS[name]
    model = make().double()
    with pytest.raises(pathsgd.UnsupportedOperation) as caught:
        pathsgd.gamma_sq(model, torch.rand(1, 4, dtype=torch.float64))
    assert operation in caught.value.operation
    assert advice in caught.value.advice
    assert caught.value.where in str(caught.value)


def test_the_module_path_is_named() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(nn.ReLU(), nn.ModuleDict({"head": inner})["head"])
    with pytest.raises(pathsgd.UnsupportedOperation, match=r"module '1\.1'"):
        pathsgd.gamma_sq(model, torch.rand(2, 4))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (torch.jit.script, "scripted"),
        (lambda m: torch.jit.trace(m, torch.rand(1, 4)), "traced"),
        (torch.compile, "compiled"),
    ],
    ids=["scripted", "traced", "compiled"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_is_refused(change: Callable[[nn.Module], nn.Module], kind: str) -> None:
    part = change(nn.Linear(4, 2))
    for model in (part, nn.Sequential(nn.ReLU(), part)):
        with pytest.raises(pathsgd.UnsupportedOperation, match=f"{kind}.*plain module"):
            pathsgd.gamma_sq(model, torch.rand(1, 4))


def test_a_scripted_function_is_refused() -> None:
    scripted = torch.jit.script(_doubled)
    with pytest.raises(pathsgd.UnsupportedOperation, match="compiled or scripted code"):
        pathsgd.gamma_sq(after_a_layer(Apply(scripted)), torch.rand(1, 4))


def _doubled(x: Tensor) -> Tensor:
    return x + x


def test_no_operation_is_both_covered_and_refused() -> None:
    assert set(RULES) & set(REFUSED) == set()


def test_the_error_keeps_the_steps_before_it() -> None:
    with pytest.raises(pathsgd.UnsupportedOperation) as caught:
        pathsgd.gamma_sq(nn.Sequential(models.mlp([4, 3, 2]), nn.Tanh()), torch.rand(1, 4))
    assert [step.operation for step in caught.value.recording.steps] == ["linear", "relu", "linear"]
