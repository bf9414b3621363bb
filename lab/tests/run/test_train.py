"""Training: outcomes, records, budgets, and continuing bit for bit from any step."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pathsgd_lab.errors import RecordError, RunError, SpecError
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.clock import Interrupted
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.listeners import Listener, Status, TensorBoard
from pathsgd_lab.run.record import plain, read_record, record_from_json, write_record
from pathsgd_lab.run.spec import RunSpec, default_spec, replace_settings
from pathsgd_lab.run.train import Stopped, resume, train
from pathsgd_lab.run.trainer import Trainer


def tiny(
    task: str = "adding", system: str = "irnn", optimiser: str = "adam", **changes: Any
) -> RunSpec:
    sizes: dict[str, dict[str, Any]] = {
        "adding": {"length": 12, "valid_size": 40, "test_size": 60, "batch_size": 4},
        "copy": {"lag": 3, "valid_size": 20, "test_size": 20, "batch_size": 4},
        "smnist": {"subsample": 7, "valid_size": 10, "batch_size": 8},
        "ptb_word": {"window": 5, "batch_size": 4, "vocabulary": 20},
        "ptb_char": {"window": 6, "batch_size": 4},
        "text8": {"window": 6, "limit": 2000, "batch_size": 4},
    }
    base = {"hidden": 6, "steps": 60, "eval_every": 25}
    return replace_settings(
        default_spec(task, system, optimiser), **{**base, **sizes[task], **changes}
    )


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Places in two trees that are not equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return [d for k in a for d in differences(a[k], b[k], f"{where}.{k}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [
            d
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for d in differences(x, y, f"{where}[{i}]")
        ]
    return [] if a == b or (a != a and b != b) else [f"{where}: {a} != {b}"]


def decisive(state: dict[str, Any]) -> dict[str, Any]:
    """A trainer's state without the clock."""
    timed = ("seconds", "cpu_seconds")
    points = [
        {k: v for k, v in p.items() if k not in timed}
        for p in (*state["curve"], *state["promotions"])
    ]
    left_out = ("clock", "started", "resumed", "curve", "promotions")
    return {**{k: v for k, v in state.items() if k not in left_out}, "points": points}


# What a checkpoint must hold differs: fresh or fixed data, carried states, a curriculum, each kind
# of optimiser state.
RESUMABLE = {
    "adam on fresh sequences": tiny(),
    "SGD with momentum and decay": tiny(optimiser="sgd", momentum=0.9, decay="cosine", warmup=7),
    "RMSprop on a fixed set": tiny(optimiser="rmsprop", train_size=50),
    "curriculum": tiny(
        start_length=4, promote_below=1.0, patience=10, decay="linear", decay_steps=20
    ),
    "carried state": tiny("ptb_char", "rnn_relu", epochs=1.5, steps=None, decay="linear"),
    "LSTM's two states": tiny("ptb_word", "lstm"),
    "unitary net": tiny("copy", "urnn", "rmsprop", hidden=4),
    "norm stabiliser": tiny("text8", "norm_stabilizer"),
    "Hessian-free": tiny(
        "adding", "mrnn_hf", "hessian-free", steps=20, cg_iterations=2, hidden=3, length=4
    ),
    "images in stages": tiny("smnist", stages=(4, 16), promote_below=99.0, patience=20),
    "Path-SGD with momentum": tiny(optimiser="path-sgd", momentum=0.9, refresh_every=7),
    "Path-SGD, both terms": tiny(optimiser="path-sgd-both"),
    "PathAdam with a curriculum": tiny(
        optimiser="path-adam", start_length=4, promote_below=1.0, refresh_every=7
    ),
    "PathAdam, carried state": tiny("ptb_char", "rnn_path", "path-adam"),
    "paper's Path-Adam": tiny("smnist", "rnn_path", "path-adam-paper"),
    "Adam with bounded growth": tiny("adding", "rnn_path", "adam", growth_limit=0.1, lr=0.03),
    "PathAdam with bounded growth": tiny(
        "adding", "rnn_path", "path-adam", growth_limit=0.1, lr=0.03
    ),
    "Path-SGD by the paper's rule with bounded growth": tiny(
        "adding",
        "rnn_path",
        "path-sgd",
        rho=0.0,
        clip=0.0,
        growth_limit=0.1,
        lr=1e-6,
    ),
}


def run_to_end(trainer: Trainer, stop_at: int | None = None) -> dict[str, Any]:
    """The loop of ``train`` without files, optionally left after some step."""
    interrupted = Interrupted()
    while trainer.ended() is None:
        if stop_at is not None and trainer.step >= stop_at:
            break
        # Interruptions come between any two steps, not only where checks are due.
        step = trainer._next_stop()
        if stop_at is not None and stop_at < step:
            trainer._next_stop = lambda: stop_at  # type: ignore[method-assign]
        trainer.advance(interrupted)
        if trainer.evaluation_due():
            trainer.evaluate()
    return trainer.state_dict()


@pytest.mark.parametrize("name", RESUMABLE)
def test_continues_bit_for_bit(name: str, tiny_data: Path, tmp_path: Path) -> None:
    spec = RESUMABLE[name]
    data = spec.task.prepare(tiny_data)
    torch.manual_seed(0)
    whole = run_to_end(Trainer(spec, data))
    assert whole["step"] >= 20
    for stop_at in (1, 13, whole["step"] - 3):
        torch.manual_seed(0)
        path = checkpoint.save(tmp_path, stop_at, run_to_end(Trainer(spec, data), stop_at))
        torch.manual_seed(99)
        second = Trainer(spec, spec.task.prepare(tiny_data))
        second.load_state_dict(checkpoint.read(path))
        assert second.step == stop_at
        assert differences(decisive(run_to_end(second)), decisive(whole)) == []


def test_same_spec_same_run_whatever_the_global_generator() -> None:
    first = train(tiny())
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    second = train(tiny())
    assert torch.equal(torch.get_rng_state(), before)
    assert [p.metrics for p in first.curve] == [p.metrics for p in second.curve]
    assert train(tiny(seed=1)).metrics != first.metrics


def test_unbalanced_start_is_the_same_function() -> None:
    spec = tiny(others_range=0.3)
    data = spec.task.prepare()
    balanced, scaled = Trainer(spec, data), Trainer(replace_settings(spec, unbalanced=100.0), data)
    assert not torch.allclose(balanced.model.readout.weight, scaled.model.readout.weight, rtol=0.5)
    assert data.evaluate(scaled.model, "valid") == pytest.approx(
        data.evaluate(balanced.model, "valid"), rel=1e-4
    )


@pytest.mark.parametrize(
    ("optimiser", "same"),
    [("path-adam", True), ("path-sgd-absolute", True), ("adam", False)],
)
def test_starts_rescaled_by_powers_of_two_train_alike_in_every_bit(
    optimiser: str, same: bool
) -> None:
    spec = tiny(optimiser=optimiser, others_range=0.3, steps=60, eval_every=10)
    twin = replace_settings(spec, unbalanced=1000.0, by_powers_of_two=True)
    curves = [[point.metrics for point in train(each).curve] for each in (spec, twin)]
    assert (curves[0] == curves[1]) == same


def test_divergence_is_an_outcome_with_its_step() -> None:
    record = train(tiny(optimiser="sgd", lr=1e6, clip=0.0, steps=400))
    assert record.outcome == "diverged"
    first = int(record.detail.split()[-1])
    assert 1 < first <= record.steps < first + 20 and "step" in record.detail
    assert record.test == math.inf or record.test > 0


def test_limit_of_the_loss_is_the_spec_s() -> None:
    assert train(tiny(explode=1e-9)).detail.endswith("at step 1")


def test_solved_stops_when_asked_and_is_said_anyway() -> None:
    easy = tiny(target=1e9)
    assert (train(easy).outcome, train(easy).steps) == ("solved", 60)
    early = train(replace_settings(easy, stop_when_solved=True))
    assert (early.outcome, early.steps) == ("solved", 25) and early.curve[-1].metrics[
        "test"
    ] == early.test
    assert train(tiny(target=1e-12)).outcome == "finished"


def test_budget_of_seconds() -> None:
    record = train(tiny(steps=None, seconds=0.5, eval_every=10**6))
    assert record.outcome == "timeout" and record.cpu_seconds >= 0.5
    assert len(record.curve) == 1  # judged once at the end all the same


def test_budget_of_epochs_counts_passes(tiny_data: Path) -> None:
    record = train(tiny("smnist", steps=None, epochs=2.0), data_dir=tiny_data)
    assert record.epochs == 2.0 and record.steps == 2 * (50 // 8)


def test_rate_warms_up_and_decays_to_nothing() -> None:
    spec = tiny(decay="linear", warmup=10, steps=100)
    factors = [spec.schedule.factor(step, step / 100) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == pytest.approx(factors[9], abs=0.02)
    assert factors[100] == 0.0 and factors[55] == pytest.approx(0.45)
    cosine = replace_settings(spec, decay="cosine", warmup=0).schedule
    assert cosine.factor(50, 0.5) == pytest.approx(0.5)


def test_curriculum_grows_lowers_the_rate_and_then_decays() -> None:
    stages = {"start_length": 6, "growth": 1.5, "promote_below": 10.0, "patience": 20}
    spec = tiny(length=30, steps=None, decay="linear", decay_steps=40, **stages)
    record = train(spec)
    assert [p.length for p in record.promotions] == [9, 13, 19, 28, 30]
    assert [p.step for p in record.promotions] == [20, 40, 60, 80, 100]
    assert record.steps == 100 + 40 and record.outcome == "finished"
    # Judged at full length only; 25 steps into a decay of 40, at a fifth of the rate for sequences
    # five times as long.
    assert [p.step for p in record.curve] == [100, 125, 140]
    assert record.curve[1].lr_factor == pytest.approx((1 - 24 / 40) * 6 / 30)


def test_best_validation_counts_unless_asked_otherwise() -> None:
    spec = tiny(optimiser="sgd", lr=0.3, steps=100, eval_every=10, others_range=0.3)
    best, last = train(spec), train(replace_settings(spec, keep_best=False))
    values = [p.metrics["valid"] for p in best.curve]
    assert (
        best.valid == min(values) and best.best_step == best.curve[values.index(min(values))].step
    )
    assert len(set(values)) > 1 and values[-1] != min(values)
    assert last.valid == values[-1] and last.best_step == 100


def test_geometry_is_measured_on_request() -> None:
    record = train(tiny(system="rnn_path", optimiser="adam", geometry=True, steps=25))
    assert record.curve[0].geometry["kappa2_over_kappa1"] > 0
    assert math.isfinite(record.curve[0].geometry["log_gamma_sq"])
    assert record.curve[0].geometry["growth_rate"] > 0


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop", "path-adam"])
def test_growth_is_bounded_on_request(optimiser: str) -> None:
    spec = tiny(
        "adding",
        "rnn_path",
        optimiser,
        growth_limit=0.01,
        lr=0.03,
        geometry=True,
        steps=40,
    )
    bounded, free = train(spec), train(replace_settings(spec, growth_limit=0.0))
    assert max(point.geometry["growth_rate"] for point in bounded.curve) < 1.05
    assert bounded.metrics != free.metrics


def test_nets_without_path_rules_have_no_growth_to_bound() -> None:
    with pytest.raises((SpecError, ValueError), match="growth_limit"):
        tiny("adding", "lstm", "adam", growth_limit=5.0)


def test_record_is_written_and_read_back(tmp_path: Path) -> None:
    record = train(tiny(), tmp_path / "run")
    assert read_record(tmp_path / "run" / "summary.json").spec == record.spec
    again = record_from_json(json.loads(json.dumps(record.to_json())))
    assert plain(again) == plain(record)
    lines = RunDirectory(tmp_path / "run").log.read()
    assert [line["kind"] for line in lines] == [
        "start",
        "evaluation",
        "evaluation",
        "evaluation",
        "end",
    ]
    assert (
        lines[0]["machine"]["threads"] == 1 and lines[0]["versions"]["torch"] == torch.__version__
    )
    text = (tmp_path / "run" / "summary.json").read_text() + json.dumps(lines)
    assert os.uname().nodename not in text and str(tmp_path) not in text


@given(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True)
)
@hypothesis_settings(max_examples=30)
def test_numbers_that_json_lacks_survive_a_record(
    tmp_path_factory: pytest.TempPathFactory, metric: float, loss: float
) -> None:
    import dataclasses

    # A run that ends with a figure that is not finite has diverged: as finished it would not be
    # read.
    record = (
        TEMPLATE if math.isfinite(metric) else dataclasses.replace(TEMPLATE, outcome="diverged")
    )
    point = dataclasses.replace(record.curve[0], train_loss=loss, metrics={"valid": metric})
    path = tmp_path_factory.mktemp("r") / "x.json"
    write_record(dataclasses.replace(record, metrics={"test": metric}, curve=(point,)), path)
    back = read_record(path)
    assert plain(back.curve[0].train_loss) == plain(loss) and plain(back.test) == plain(metric)


TEMPLATE = train(tiny(steps=5))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"spec": {}}', "not json"])
def test_what_is_no_record_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(RecordError, match=r"x\.json cannot be read as a record"):
        read_record(tmp_path / "x.json")


class InterruptAt(Listener):
    """Sends this process a signal once a run has reached some step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def on_status(self, status: Status) -> None:
        if status.step >= self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_resume_goes_on(tmp_path: Path, number: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.fail("signals reach the main thread only")
    before = signal.getsignal(number)
    whole = train(tiny(steps=200), tmp_path / "whole")
    with pytest.raises(Stopped) as stopped:
        train(tiny(steps=200), tmp_path / "run", listeners=[InterruptAt(100, number)])
    assert stopped.value.step == 100 and stopped.value.directory == tmp_path / "run"
    assert signal.getsignal(number) == before
    record = resume(tmp_path / "run")
    assert record.resumed == 1
    assert record.metrics == whole.metrics and [p.metrics for p in record.curve] == [
        p.metrics for p in whole.curve
    ]
    kinds = [line["kind"] for line in RunDirectory(tmp_path / "run").log.read()]
    assert kinds.count("evaluation") == len(record.curve) and kinds.count("resume") == 1


def test_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = train(tiny(), tmp_path)
    with mock.patch.object(Trainer, "advance", side_effect=AssertionError("it trains")):
        assert plain(train(tiny(), tmp_path, resume=True)) == plain(first)


def test_directories_are_not_mixed_up(tmp_path: Path) -> None:
    train(tiny(steps=20), tmp_path)
    with pytest.raises(RunError, match="has a run already"):
        train(tiny(steps=20), tmp_path)
    with pytest.raises(RunError, match="other settings"):
        train(tiny(steps=21), tmp_path, resume=True)
    with pytest.raises(RunError, match="not the directory of a run"):
        resume(tmp_path / "nothing")
    with RunDirectory(tmp_path).locked(), pytest.raises(RunError, match="another process"):
        train(tiny(steps=20), tmp_path, resume=True)


def test_damaged_newest_checkpoint_costs_only_a_little(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(tiny(steps=100), tmp_path / "whole")
    with pytest.raises(Stopped):
        train(
            tiny(steps=100),
            tmp_path / "run",
            listeners=[InterruptAt(60, signal.SIGINT)],
            checkpoint_seconds=0.0,
        )
    newest = checkpoint.paths(tmp_path / "run")[0]
    newest.write_bytes(newest.read_bytes()[:-7])
    record = resume(tmp_path / "run")
    assert newest.name in caplog.text
    assert record.metrics == whole.metrics and [p.step for p in record.curve] == [
        p.step for p in whole.curve
    ]


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = train(tiny(), listeners=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("evaluation/valid")] == [p.step for p in record.curve]
    assert events.Scalars("train/running_loss")[-1].step == 60
