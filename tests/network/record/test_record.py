"""What a recording depends on: the batch dimension, kinds of inputs, styles of writing a model."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathsgd
from pathsgd.network.record.record import record
from pathsgd.network.record.recorder import is_recording
from support import models
from support.models import Apply, Weights

DOUBLE = torch.float64


def same_gamma(model: nn.Module, *examples: tuple[Tensor, ...]) -> None:
    first, *others = [pathsgd.gamma_sq(model, *inputs) for inputs in examples]
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "name", ["mlp", "conv2d", "rnn", "packed sequence", "tied language model", "two inputs"]
)
def test_gamma_does_not_depend_on_the_batch_size(name: str) -> None:
    from support.cases import CASES

    case = CASES[name]
    same_gamma(case.build(name), case.examples(1), case.examples(2), case.examples(7))


def test_time_first_or_batch_first_and_sizes_that_coincide() -> None:
    for batch_first in (True, False):
        net = models.ReadRNN(2, 3, 1, batch_first=batch_first).double()
        square = torch.rand(3, 3, 2, dtype=DOUBLE)
        same_gamma(net, (square,), (square[:1] if batch_first else square[:, :1],))


def test_a_shift_in_time_is_not_mistaken_for_a_batch() -> None:
    """y_t = A x_t + B x_{t-1} over (T, B, I): T may vary, but slices over T mix the steps."""
    model = Weights(
        lambda m, x: x @ m.a + torch.cat([torch.zeros_like(x[:1]), x[:-1]]) @ m.b,
        a=(2, 1),
        b=(2, 1),
    ).double()
    a, b = (p.detach().square().sum() for p in (model.a, model.b))
    for rows in (1, 3):
        torch.testing.assert_close(
            pathsgd.gamma_sq(model, torch.rand(4, rows, 2, dtype=DOUBLE)), 4 * a + 3 * b
        )


def test_an_unbatched_convolution_is_not_mistaken_for_a_batch() -> None:
    net = nn.Sequential(
        nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv1d(2, 1, 3, padding=1)
    ).double()
    same_gamma(net, (torch.rand(1, 5, dtype=DOUBLE),), (torch.rand(4, 1, 5, dtype=DOUBLE),))


def test_an_input_without_a_batch_dimension_beside_one_with() -> None:
    model = Weights(lambda m, x, table: x @ m.a + (table @ m.b).T, a=(2, 1), b=(3, 1)).double()
    table = torch.rand(1, 3, dtype=DOUBLE)
    same_gamma(
        model, (torch.rand(1, 2, dtype=DOUBLE), table), (torch.rand(6, 2, dtype=DOUBLE), table)
    )


def test_the_values_of_floating_point_inputs_do_not_matter() -> None:
    net = models.ReadRNN(2, 3, 1)
    same_gamma(net, (torch.zeros(4, 2, 2),), (torch.full((4, 2, 2), -1e30),))


@pytest.mark.parametrize("kind", ["words", "fixed table", "one-hot", "single words"])
def test_the_values_of_indices_do_not_matter(kind: str) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = nn.Embedding(5, 3), nn.Linear(3 if kind == "words" else 5, 2)
            self.register_buffer("table", torch.eye(5))

        def forward(self, words: Tensor) -> Tensor:
            if kind == "words":
                return self.out(self.embedding(words))
            return self.out(
                F.embedding(words, self.table)
                if kind == "fixed table"
                else F.one_hot(words, 5).float()
            )

    shape = (2,) if kind == "single words" else (2, 3)
    same_gamma(Reader(), (torch.zeros(shape, dtype=torch.long),), (torch.full(shape, 4),))


def test_a_fixed_one_hot_table_is_the_input_itself() -> None:
    model = Weights(lambda m, words: F.embedding(words, torch.eye(3)) @ m.w, w=(3, 2))
    expected = model.w.detach().double().square().sum()
    torch.testing.assert_close(
        pathsgd.gamma_sq(model, torch.zeros(2, 1, dtype=torch.long)), expected
    )


def test_lengths_are_structure() -> None:
    """A vector of integers may be used as numbers: to mask, to divide, to pick the last step."""

    def forward(m: Weights, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        h = torch.relu(x @ m.a) * mask[..., None]
        last = h[torch.arange(len(x)), lengths - 1]
        return h.sum(1) / lengths[:, None].to(h.dtype) + last

    model = Weights(forward, a=(2, 1)).double()
    expected = model.a.detach().square().sum() * (3 / 9 + 1)
    x = torch.rand(2, 5, 2, dtype=DOUBLE)
    torch.testing.assert_close(pathsgd.gamma_sq(model, x, torch.tensor([3, 3])), expected)


def test_padding_masks_made_from_words() -> None:
    """A mask is structure too: it is what it is for the example words."""

    def forward(m: Weights, words: Tensor) -> Tensor:
        state = words.new_zeros(words.shape[0], 2).to(m.table.dtype)
        return state + (F.embedding(words, m.table) * (words != 0)[..., None]).sum(1)

    model = Weights(forward, table=(4, 2)).double()
    expected = model.table.detach().square().sum()
    torch.testing.assert_close(pathsgd.gamma_sq(model, torch.tensor([[1, 2, 0, 0]])), 2 * expected)


def test_a_packed_sequence_as_input_is_averaged_over_its_rows() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.RNN(2, 3, nonlinearity="relu"), nn.Linear(3, 1)

        def forward(self, packed: nn.utils.rnn.PackedSequence) -> Tensor:
            return self.out(self.rnn(packed)[1][0])

    model = Reader().double()
    lengths = [4, 2]
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.rand(4, 2, 2, dtype=DOUBLE), torch.tensor(lengths)
    )

    class Padded(Reader):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return self.out(self.rnn(x)[1][0])

    alone = Padded().double()
    alone.load_state_dict(model.state_dict())
    each = [pathsgd.gamma_sq(alone, torch.rand(steps, 1, 2, dtype=DOUBLE)) for steps in lengths]
    torch.testing.assert_close(pathsgd.gamma_sq(model, packed), sum(each) / 2)
    both = [
        pathsgd.kappa(alone, torch.rand(steps, 1, 2, dtype=DOUBLE), terms="both")
        for steps in lengths
    ]
    for name, value in pathsgd.kappa(model, packed, terms="both").items():
        torch.testing.assert_close(value, (both[0][name] + both[1][name]) / 2)


def test_an_initial_state_that_is_an_input_is_no_input_node() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.cell = (
                nn.RNN(2, 3, nonlinearity="relu"),
                nn.RNNCell(3, 3, nonlinearity="relu"),
            )

        def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
            last = self.rnn(x, h)[1][0]
            return self.cell(last, None if h is None else h[0])

    model, x = Reader().double(), torch.rand(4, 2, 2, dtype=DOUBLE)
    same_gamma(
        model, (x,), (x, torch.zeros(1, 2, 3, dtype=DOUBLE)), (x, torch.ones(1, 2, 3, dtype=DOUBLE))
    )


class Nested(nn.Module):
    """Two layers whose caller passes initial states: flat, in tuples, in a dict with the input."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        sizes = [2, *[3] * layers]
        self.layers = nn.ModuleList(
            nn.RNN(i, o, nonlinearity="relu") for i, o in itertools.pairwise(sizes)
        )

    def forward(self, x: Any, states: Any = None) -> Tensor:
        if isinstance(x, dict):
            x, states = x["words"], x["states"]
        for layer, state in zip(self.layers, states or [None] * len(self.layers)):
            x, _ = layer(x, state)
        return x[-1]


def nested_inputs(form: str, rows: int, layers: int = 2) -> tuple[Any, ...]:
    x = torch.rand(4, rows, 2, dtype=DOUBLE)
    states = [torch.rand(1, rows, 3, dtype=DOUBLE) for _ in range(layers)]
    forms = {
        "tuple": (x, tuple(states)),
        "list": (x, states),
        "dict of tuples": ({"states": tuple(states), "words": x},),
        "some missing": (x, (states[0], None)),
    }
    return forms[form]


@pytest.mark.parametrize("form", ["tuple", "list", "dict of tuples", "some missing"])
def test_nested_inputs_have_a_batch_dimension_too(form: str) -> None:
    model = Nested().double()
    same_gamma(
        model,
        (torch.rand(4, 1, 2, dtype=DOUBLE),),
        *(nested_inputs(form, rows) for rows in (1, 3, 4)),
    )


def test_an_rnn_given_its_initial_state() -> None:
    model = nn.RNN(2, 3, nonlinearity="relu").double()
    x, h = torch.rand(4, 5, 2, dtype=DOUBLE), torch.rand(1, 5, 3, dtype=DOUBLE)
    same_gamma(model, (x[:, :1],), (x,), (x, h))


def test_a_dict_of_tensors() -> None:
    model = Weights(
        lambda m, given: given["left"] @ m.a + given["right"] @ m.b, a=(2, 1), b=(3, 1)
    ).double()
    left, right = torch.rand(6, 2, dtype=DOUBLE), torch.rand(6, 3, dtype=DOUBLE)
    expected = sum(p.detach().square().sum() for p in model.parameters())
    torch.testing.assert_close(pathsgd.gamma_sq(model, {"left": left, "right": right}), expected)


def test_the_states_of_many_layers() -> None:
    model = Nested(layers=12).double()
    same_gamma(model, (torch.rand(4, 1, 2, dtype=DOUBLE),), nested_inputs("tuple", 3, layers=12))


def test_constants_are_taken_as_they_were_when_used() -> None:
    def forward(m: Weights, x: Tensor) -> Tensor:
        scale = torch.ones(1, dtype=x.dtype)
        y = (x @ m.a) * scale
        scale.mul_(100)
        return y

    model = Weights(forward, a=(2, 1)).double()
    torch.testing.assert_close(
        pathsgd.gamma_sq(model, torch.rand(1, 2, dtype=DOUBLE)), model.a.detach().square().sum()
    )


def test_buffers_are_read_at_every_evaluation() -> None:
    from pathsgd.network.squared import Evaluation

    net, x = (
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double().eval(),
        torch.rand(1, 2, dtype=DOUBLE),
    )
    recording, parameters = record(net, (x,)), dict(net.named_parameters())
    before = float(Evaluation(recording, parameters).total.log())
    net[1].running_var.mul_(4)
    assert float(Evaluation(recording, parameters).total.log()) == pytest.approx(
        float(pathsgd.log_gamma_sq(net, x))
    )
    assert float(pathsgd.log_gamma_sq(net, x)) < before


def test_float32_models_are_measured_in_float64() -> None:
    net, x = models.mlp([2, 3, 1]), torch.rand(1, 2)
    found, exact = pathsgd.gamma_sq(net, x), pathsgd.gamma_sq(net.double(), x.double())
    assert found.dtype == DOUBLE
    assert torch.equal(found, exact)


def test_frozen_and_unused_parameters() -> None:
    model = Weights(lambda m, x: x @ m.used, used=(2, 1), unused=(3,)).double()
    model.used.requires_grad_(False)
    kappa = pathsgd.kappa(model, torch.rand(1, 2, dtype=DOUBLE), terms="both")
    assert torch.equal(kappa["used"], torch.ones(2, 1, dtype=DOUBLE))
    assert torch.equal(kappa["unused"], torch.zeros(3, dtype=DOUBLE))


def test_models_know_when_they_are_recorded() -> None:
    seen = []
    model = nn.Sequential(nn.Embedding(3, 2), Apply(lambda h: (seen.append(is_recording()), h)[1]))
    pathsgd.gamma_sq(model, torch.zeros(1, 2, dtype=torch.long))
    assert seen and all(seen) and not is_recording()
