"""The support report: each operation's rule, its effect on parameters, reasons for a refusal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathsgd.network.rules import RULES
from pathsgd.paths.explain import Explanation, explain
from support import models
from support.cases import CASES
from support.models import Weights


def explained(name: str) -> Explanation:
    return explain(CASES[name].build(name), *CASES[name].examples())


def test_every_operation_is_listed_with_its_place_rule_and_parameters() -> None:
    report = explained("mlp")
    assert report.supported
    places = [f"module '{k}'" for k in range(5)]
    assert [row.where for row in report.rows] == places
    assert [row.operation for row in report.rows] == ["linear", "relu", "linear", "relu", "linear"]
    assert report.rows[0].parameters == ("0.weight", "0.bias")
    assert report.rows[0].rule == RULES["linear"].summary
    assert report.shared == {} and report.unreached == []
    assert report.free_nodes == {"0.weight": 2, "2.weight": 2}


def test_loops_are_counted_and_weights_seen_through_views() -> None:
    report = explained("hand-written loop")
    matmuls = {row.parameters: row.times for row in report.rows if row.operation == "matmul"}
    assert matmuls == {("w_in",): 3, ("w_rec",): 3, ("w_out",): 3}
    assert "3 uses, some along one path" in report.shared["w_rec"]
    assert "3 uses, never twice on one path" in report.shared["w_in"]
    assert "matmul x 3" in str(report)


def test_shared_parameters_are_told_apart() -> None:
    report = explained("tied language model")
    assert report.shared["embedding.weight"].startswith("2 uses, some along one path")
    assert report.shared["rnn.weight_hh_l0"].startswith(
        "3 uses along one path, as a recurrent matrix"
    )
    assert "decoder.bias" not in report.shared
    assert "free nodes  none" in str(report)


def test_parameters_without_a_path_are_named() -> None:
    model = Weights(
        lambda m, x: (x @ m.used, x @ m.aside)[0], used=(2, 1), aside=(2, 1), unused=(3,)
    )
    report = explain(model, torch.rand(1, 2))
    assert report.unreached == ["aside", "unused"]
    assert "unused reaches no output" in str(report)
    assert explain(model, torch.rand(1, 2), output=lambda y: y).unreached == ["aside", "unused"]


def test_an_unsupported_model_is_explained_up_to_the_reason() -> None:
    report = explain(nn.Sequential(models.mlp([2, 3, 2]), nn.Softmax(-1)), torch.rand(4, 2))
    assert not report.supported
    assert [row.operation for row in report.rows] == ["linear", "relu", "linear"]
    assert report.problem is not None and report.problem.where == "module '1'"
    text = str(report)
    assert "not supported" in text and "softmax" in text and "leave it to the loss" in text


def test_a_compiled_model_is_explained_too() -> None:
    report = explain(torch.compile(nn.Linear(2, 1)), torch.rand(1, 2))
    assert not report.supported and report.rows == []
    assert "measure the plain module" in str(report)


def test_wrong_input_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="forward failed"):
        explain(models.mlp([2, 3, 1]), torch.rand(1, 5))


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_can_be_explained(name: str) -> None:
    report = explained(name)
    assert report.supported
    lines = str(report).splitlines()
    assert all(any(line.startswith(row.operation) for line in lines) for row in report.rows)
    assert all(row.rule for row in report.rows)
