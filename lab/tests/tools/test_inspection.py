"""Inspecting one's own model: figures equal to the library's, and mistakes in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import pathsgd
from pathsgd_lab import cli
from pathsgd_lab.tools.inspection import inspect_model, load_model, parse_input

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.RNN(2, 5, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(5, 1)
    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])

def make(): return Net()
def words():
    return nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2))
def tanh(): return nn.Sequential(nn.Linear(2, 3), nn.Tanh())
def with_argument(size): return nn.Linear(size, 1)
def number(): return 3
ready = nn.Linear(4, 2)
constant = 5
"""


@pytest.fixture(autouse=True)
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "own_broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_models", raising=False)


def test_figures_are_the_library_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "own_models:make", "--input", "1,9,2", "--second"]) == 0
    text = capsys.readouterr().out
    model, inputs = load_model("own_models:make"), torch.zeros(1, 9, 2)
    assert f"{pathsgd.gamma_sq(model, inputs).item():.6g}" in text
    assert (
        "rnn.weight_hh_l0" in text
        and "5 units can be rescaled" in text
        and "every operation has a rule" in text
    )
    found = inspect_model(model, [inputs], second=True)
    kappa = pathsgd.kappa(model, inputs, relative=True)
    by_name = {k.name: k for k in found.kappas}
    assert by_name["out.weight"].high == kappa["out.weight"].max().item()
    second = pathsgd.kappa(model, inputs, terms="second", relative=True)["rnn.weight_hh_l0"]
    assert by_name["rnn.weight_hh_l0"].second == pytest.approx(
        (second.norm() / kappa["rnn.weight_hh_l0"].norm()).item()
    )


def test_balance_is_worse_for_a_rescaled_model_and_the_model_is_left_alone() -> None:
    model, inputs = load_model("own_models:make"), parse_input("1,9,2")
    balanced = pathsgd.balance(load_model("own_models:make"), inputs)
    pathsgd.random_rescaling(
        model, inputs, low=0.01, high=100.0, generator=torch.Generator().manual_seed(0)
    )
    before = [p.clone() for p in model.parameters()]
    found = inspect_model(model, [inputs], second=False).balance
    assert found is not None and found.squared_weights > 10 * found.squared_weights_balanced
    expected = sum(p.detach().double().square().sum().item() for p in balanced.parameters())
    assert found.squared_weights_balanced == pytest.approx(expected, rel=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_symbols_and_ready_made_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "own_models:words", "--input", "int:1,4"]) == 0
    assert cli.main(["inspect", "own_models:ready", "--input", "1,4"]) == 0
    assert "no unit can be rescaled" in capsys.readouterr().out


def test_model_without_rules_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "own_models:tanh", "--input", "1,2"]) == 1
    text = capsys.readouterr().out
    assert "not supported" in text and "tanh" in text


MISTAKES = {
    "no colon": (["own_models", "--input", "1,2"], "write package.module:factory"),
    "no module": (["own_modles:make", "--input", "1,2"], "no module 'own_modles'"),
    "no factory": (["own_models:mkae", "--input", "1,2"], "own_models has no 'mkae'; it has"),
    "not a model": (["own_models:number", "--input", "1,2"], "gives a int, not a torch.nn.Module"),
    "not callable": (
        ["own_models:constant", "--input", "1,2"],
        "neither a model nor something that makes one",
    ),
    "arguments": (["own_models:with_argument", "--input", "1,2"], "needs arguments (size)"),
    "no shape": (["own_models:make", "--input", "1,two"], "is no shape"),
    "no size": (["own_models:make", "--input", "1,0,2"], "is no shape"),
    "wrong kind": (["own_models:make", "--input", "float:1,2"], "is no shape"),
    "bad shape": (["own_models:make", "--input", "1,9,3"], "1,9,3"),
    "no input": (["own_models:make"], "--input"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = MISTAKES[name]
    assert cli.main(["inspect", *words]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("pathsgd: error: ") and errors.count("\n") == 1 and message in errors


KNOCKS = {
    "missing import": (
        "import nothing_of_that_name\n",
        "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    ),
    "syntax error": ("def make(:\n", "SyntaxError: invalid syntax"),
    "exits on import": ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
    "exits": ("import sys\ndef make():\n    sys.exit(7)\n", "SystemExit: 7"),
    "recurses": (
        "def make():\n    return make()\n",
        "RecursionError: maximum recursion depth exceeded",
    ),
    "raises lines": ("def make():\n    raise KeyError('one\\ntwo [/bold]')\n", "KeyError: 'one"),
    "interrupts nothing": ("def make():\n    raise GeneratorExit\n", "GeneratorExit"),
}


@pytest.mark.parametrize("name", KNOCKS)
def test_whatever_ends_the_user_s_code_is_told_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, message = KNOCKS[name]
    (tmp_path / "own_broken.py").write_text(source)
    monkeypatch.delitem(sys.modules, "own_broken", raising=False)
    assert cli.main(["inspect", "own_broken:make", "--input", "1,2"]) == 2
    shown = capsys.readouterr()
    assert (
        shown.err.startswith("pathsgd: error: own_broken")
        and shown.err.count("\n") == 1
        and message in shown.err
    )
    assert shown.out == ""


def test_what_the_user_s_code_prints_is_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
import torch
print("loading [/bold]")
class Net(torch.nn.Sequential):
    def forward(self, x):
        print("forward")
        return super().forward(x)
def make():
    print("making")
    return Net(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
"""
    (tmp_path / "own_chatty.py").write_text(source)
    monkeypatch.delitem(sys.modules, "own_chatty", raising=False)
    assert cli.main(["inspect", "own_chatty:make", "--input", "1,2"]) == 0
    shown = capsys.readouterr()
    assert "gamma^2" in shown.out and not any(
        word in shown.out for word in ("loading", "making", "forward")
    )
    assert all(word in shown.err for word in ("loading [/bold]", "making", "forward"))
