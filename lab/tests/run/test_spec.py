"""Specs: a name for every setting, JSON and command line there and back, a hash of the run."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import pathsgd
from pathsgd_lab import flags
from pathsgd_lab.errors import RunError
from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.spec import (
    RunSpec,
    SpecError,
    default_spec,
    json_hash,
    replace_settings,
    settings,
    spec_from_json,
    spec_hash,
    spec_to_json,
    with_component,
)
from pathsgd_lab.run.train import train
from pathsgd_lab.systems import SYSTEMS
from pathsgd_lab.tasks import TASKS


def allowed(task: str, system: str, optimiser: str) -> bool:
    if SYSTEMS[system]().misfit(TASKS[task]()) or OPTIMISERS[optimiser].only_for not in (
        None,
        system,
    ):
        return False
    return SYSTEMS[system].path_rules or not OPTIMISERS[optimiser].needs_paths


COMBINATIONS = [c for c in itertools.product(TASKS, SYSTEMS, OPTIMISERS) if allowed(*c)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_setting_has_a_name_of_its_own(system: str) -> None:
    for task, _, optimiser in (c for c in COMBINATIONS if c[1] == system):
        names = Counter(name for name, _ in settings(default_spec(task, system, optimiser)))
        names.update(("run_dir", "resume", "data_dir", "tensorboard", "grid", "jobs", "backend"))
        assert [name for name, count in names.items() if count > 1] == []


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    spec = default_spec(*draw(st.sampled_from(COMBINATIONS)))
    changes = {
        "seed": st.integers(0, 10**6),
        "unbalanced": st.floats(1, 1e3) if spec.system.path_rules else st.just(1.0),
        "batch_size": st.none() | st.integers(1, 64),
        "decay": st.sampled_from(["constant", "linear", "cosine"]),
        "steps": st.integers(1, 10**6),
        "stop_when_solved": st.booleans(),
        "keep_best": st.booleans(),
        "eval_splits": st.sampled_from([("valid",), ("valid", "test")]),
        "target": st.none() | st.floats(1e-9, 1e9),
    }
    if spec.system.any_length:
        changes["stages"] = st.lists(st.integers(2, 100), max_size=3, unique=True).map(
            lambda s: tuple(sorted(s))
        )
    if "lr" in dict(settings(spec)):
        changes["lr"] = st.floats(1e-9, 10.0)
    chosen = draw(st.fixed_dictionaries({}, optional=changes))
    return replace_settings(spec, **chosen)


@given(specs())
@hypothesis_settings(max_examples=60)
def test_json_and_command_line_give_the_spec_again(spec: RunSpec) -> None:
    assert spec_from_json(spec_to_json(spec)) == spec
    names, words = flags.split_names(shlex.split(flags.command_of(spec))[2:])
    assert flags.with_flags(flags.named_spec(names, "train"), words, "train") == spec


@given(specs(), specs())
@hypothesis_settings(max_examples=60)
def test_hash_is_equal_exactly_for_equal_runs(a: RunSpec, b: RunSpec) -> None:
    assert (spec_hash(a) == spec_hash(b)) == (a == b)
    assert spec_hash(dataclasses.replace(a, paper_ref="Table 1")) == spec_hash(a)


def test_hash_does_not_tell_one_from_one_point_zero() -> None:
    spec = default_spec("adding", "irnn", "sgd")
    assert spec_hash(replace_settings(spec, lr=1)) == spec_hash(replace_settings(spec, lr=1.0))


def test_fields_added_since_a_record_was_written_get_their_defaults() -> None:
    spec = default_spec("adding", "irnn")
    content = spec_to_json(spec)
    del content["task"]["markers"], content["unbalanced"], content["curriculum"]
    assert spec_from_json(content) == spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {"name": "addding"}}, "unknown task 'addding'; choose one of adding"),
        ({"task": {"name": "adding", "lenght": 5}}, "task has no setting lenght"),
        ({"task": {"name": "adding", "length": "5"}}, "task.length: Expected `int`, got `str`"),
        ({"task": {"name": "adding", "length": 1}}, "at least 2 steps"),
        ({"system": {}}, "the run has no system"),
        ({"schedule": {"decay": "sudden"}}, "must be one of constant, linear, cosine"),
        ({"by_powers_of_two": True}, "says how units are rescaled"),
        (
            {"system": {"name": "lstm"}, "unbalanced": 10.0},
            "unbalanced needs a net of linear and ReLU parts",
        ),
        (
            {"system": {"name": "lstm"}, "optimiser": {"name": "path-adam"}},
            "path-adam needs a net of linear",
        ),
        (
            {"budget": {"seconds": 3.0}, "schedule": {"decay": "linear"}},
            "a decaying rate needs an end",
        ),
        ({"speed": 3}, "run has no setting speed"),
    ],
)
def test_impossible_runs_get_one_line(change: dict[str, object], message: str) -> None:
    content = {**spec_to_json(default_spec("adding", "irnn")), **change}
    with pytest.raises(SpecError, match=message) as caught:
        spec_from_json(content)
    assert "\n" not in str(caught.value)


def test_another_component_keeps_what_both_have() -> None:
    spec = replace_settings(default_spec("adding", "irnn", "sgd"), lr=0.5, momentum=0.3, hidden=7)
    changed = with_component(with_component(spec, "optimiser", "adam"), "system", "lstm")
    assert (changed.optimiser.name, changed.optimiser.lr) == ("adam", 0.5)  # type: ignore[attr-defined]
    assert (changed.system.name, changed.system.hidden) == ("lstm", 7)
    # Where nothing was chosen, the new part has its own defaults.
    fresh = with_component(default_spec("adding", "irnn", "sgd"), "optimiser", "adam")
    assert fresh.optimiser == OPTIMISERS["adam"]()


def test_unknown_setting_is_named() -> None:
    with pytest.raises(SpecError, match="no setting learning_rate in this run"):
        replace_settings(default_spec("adding", "irnn"), learning_rate=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lenght", "5"], "perhaps you meant --length"),
        (["--length", "x"], "invalid literal for int"),
        (["--length", "1"], "the adding problem needs at least 2 steps, got length=1"),
        (["--decay", "sudden"], "sudden"),
    ],
)
def test_wrong_flags_get_one_line(words: list[str], message: str) -> None:
    with pytest.raises(flags.UsageError, match=message) as caught:
        flags.with_flags(default_spec("adding", "irnn"), words, "pathsgd train")
    assert "\n" not in str(caught.value) and "│" not in str(caught.value)


def test_path_adam_at_its_defaults_is_the_librarys() -> None:
    spec = default_spec("adding", "rnn_path", "path-adam")
    model = spec.system.build(spec.task, 0)
    ours = spec.optimiser.stepper(spec.system, model, spec.task).optimiser
    theirs = pathsgd.PathAdam(model, output=0)
    assert ours.defaults == theirs.defaults
    assert dataclasses.replace(ours.plan, rule=theirs.plan.rule) == theirs.plan
    assert type(ours.plan.rule) is type(theirs.plan.rule)


def test_a_run_with_retired_settings_is_read_and_not_run() -> None:
    content = spec_to_json(default_spec("adding", "rnn_path", "path-adam"))
    content["optimiser"]["step_growth"] = 0.3
    spec = spec_from_json(content)
    assert spec_to_json(spec) == content and spec_from_json(content) == spec
    assert dict(settings(spec))["step_growth"] == 0.3
    assert spec_hash(spec) == json_hash(content) != spec_hash(default_spec("adding", "rnn_path"))
    assert flags.command_of(spec) == "retired code, cannot be run again"
    with pytest.raises(RunError, match="path-adam with step_growth: retired code"):
        train(replace_settings(spec, hidden=3, length=4, valid_size=5, test_size=5))
