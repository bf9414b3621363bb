"""One run in progress: its steps, its clock, its evaluations, and all that decides how it goes on.

A run goes in stretches of ``CHECK_EVERY`` steps.  Inside a stretch nothing happens but data, step,
data, step; at its end the losses are looked at, the curriculum moves, the budget is checked, and
evaluations and checkpoints are made. All decisions that change the numbers fall at fixed step
numbers, so a run that was continued from a checkpoint takes the same ones.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import pathsgd
from pathsgd_lab.errors import CheckpointError
from pathsgd_lab.run.clock import Clock, Interrupted
from pathsgd_lab.run.listeners import Status
from pathsgd_lab.run.optimisers.base import GradientStepper
from pathsgd_lab.run.provenance import commit, machine, versions
from pathsgd_lab.run.record import Outcome, Point, Promotion, Record
from pathsgd_lab.run.schedule import CurriculumState
from pathsgd_lab.run.spec import RunSpec, spec_hash
from pathsgd_lab.run.together import Together
from pathsgd_lab.systems import SequenceNet
from pathsgd_lab.tasks import State, TaskData
from pathsgd_lab.tasks.sampling import generator_for

CHECK_EVERY = 20
"""Steps between two looks at the losses."""
RESCALING_KEY = 0x756E_6261  # sets the draw of an unbalanced start apart from those of the data


class Trainer:
    """One run in progress."""

    def __init__(self, spec: RunSpec, data: TaskData) -> None:
        self.spec, self.data, self.hash = spec, data, spec_hash(spec)
        self.model: SequenceNet = spec.system.build(spec.task, spec.seed)
        if spec.unbalanced > 1.0:
            draw = generator_for(spec.seed, RESCALING_KEY)
            example = spec.task.example_inputs()
            pathsgd.random_rescaling(
                self.model, example, low=1.0 / spec.unbalanced, high=spec.unbalanced,
                powers_of_two=spec.by_powers_of_two, generator=draw, output=0,
            )  # fmt: skip
        self.together = Together()
        self.together.check(spec.batch)
        self.stepper = spec.optimiser.stepper(spec.system, self.model, spec.task)
        if self.together.count > 1 and not isinstance(self.stepper, GradientStepper):
            raise ValueError(
                f"{spec.optimiser.name} has no gradient to average: train with it in one process"
            )
        self.stream = data.stream(spec.batch, spec.seed)
        self.curriculum = CurriculumState(spec.curriculum, spec.task.length)
        if not self.curriculum.at_full_length:
            self.stream.set_length(self.curriculum.length)
        self.clock = Clock()
        self.step = 0
        self.carried: State | None = None
        self.lr_factor = 0.0
        self.loss_sum, self.loss_count = 0.0, 0
        self.curve: list[Point] = []
        self.promotions: list[Promotion] = []
        self.best: dict[str, Any] | None = None
        self.diverged_at: int | None = None
        self.resumed = 0
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    # -- one stretch of steps
    # -----------------------------------------------------------------------------------

    def advance(self, interrupted: Interrupted) -> None:
        """Train up to the next step number at which something is due, or until time is over."""
        until = self._next_stop()
        stream, stepper, profile = self.stream, self.stepper, self.clock.profile
        losses: list[Tensor] = []
        now = time.perf_counter
        while self.step < until and not (self._epochs_done() or self._is_to_stop(interrupted)):
            self.lr_factor = self._rate_factor()
            stepper.scale_rate(self.lr_factor)
            start = now()
            batch = stream.next()
            drawn = now()
            if self.together.count > 1:
                batch = self.together.share(batch, self.spec.task.every_step)
            loss, state = stepper.step(batch, self.carried if batch.carry else None)
            # Copies, as a checkpoint makes them: a view at another alignment may give other last
            # bits.
            self.carried = tuple(part.clone() for part in state)
            losses.append(loss)
            self.step += 1
            profile["data"] += drawn - start
            profile["step"] += now() - drawn
        self._look_at(losses)
        if (
            self.step % CHECK_EVERY == 0
            and self.diverged_at is None
            and self.curriculum.promote(self.step)
        ):
            self.stream.set_length(self.curriculum.length)
            self.promotions.append(
                Promotion(self.step, self.clock.cpu_seconds(), self.curriculum.length)
            )

    def _is_to_stop(self, interrupted: Interrupted) -> bool:
        """Whether the run must stop: asked to, or out of time; the same in every process."""
        return self.together.any(interrupted.requested or self._out_of_time())

    def _next_stop(self) -> int:
        stops = [
            (self.step // CHECK_EVERY + 1) * CHECK_EVERY,
            (self.step // self.spec.evaluation.eval_every + 1) * self.spec.evaluation.eval_every,
        ]
        last = self._last_step()
        return min(stops if last is None else [*stops, last])

    def _look_at(self, losses: Sequence[Tensor]) -> None:
        """Count the losses of a stretch in order; note the first that is infinite or too large."""
        if not losses:
            return
        values: list[float] = torch.stack(list(losses)).tolist()
        for index, value in enumerate(values):
            if not value <= self.spec.budget.explode:
                self.diverged_at = self.step - len(values) + index + 1
                return
            self.curriculum.observe(value)
            self.loss_sum += value
            self.loss_count += 1

    def _rate_factor(self) -> float:
        return self.spec.schedule.factor(self.step, self.progress) * self.curriculum.rate_factor

    # -- how far a run is
    # ---------------------------------------------------------------------------------------

    def _last_step(self) -> int | None:
        """The step at which the run ends by its number of steps."""
        limit, decay = self.spec.budget.step_limit, self.spec.schedule.decay_steps
        since = self.curriculum.full_since
        ends = [
            e
            for e in (limit, since + decay if decay and since is not None else None)
            if e is not None
        ]
        return min(ends) if ends else None

    @property
    def progress(self) -> float:
        """Share of the way from full length to the end of the run, for the decay of the rate."""
        since = self.curriculum.full_since
        if since is None:
            return 0.0
        if self.spec.schedule.decay_steps:
            return min(1.0, (self.step - since) / self.spec.schedule.decay_steps)
        limit, epochs = self.spec.budget.step_limit, self.spec.budget.epochs
        by_steps = (self.step - since) / max(1, limit - since) if limit is not None else 0.0
        by_epochs = self.stream.epoch / epochs if epochs is not None else 0.0
        return min(1.0, max(by_steps, by_epochs))

    def _epochs_done(self) -> bool:
        return self.spec.budget.epochs is not None and self.stream.epoch >= self.spec.budget.epochs

    def _out_of_time(self) -> bool:
        budget = self.spec.budget
        if budget.seconds is None:
            return False
        spent = self.clock.cpu_seconds() if budget.clock == "cpu" else self.clock.seconds()
        return spent >= budget.seconds

    def share_used(self) -> float:
        """Share of the budget used, for a progress bar."""
        budget, shares = self.spec.budget, [self.progress]
        if budget.seconds is not None:
            spent = self.clock.cpu_seconds() if budget.clock == "cpu" else self.clock.seconds()
            shares.append(spent / budget.seconds)
        if budget.step_limit is not None:
            shares.append(self.step / budget.step_limit)
        return min(1.0, max(shares))

    def ended(self) -> Outcome | None:
        """Why the run is over, if it is."""
        if self.diverged_at is not None:
            return "diverged"
        if self._solved():
            return "solved"
        last = self._last_step()
        if self._epochs_done() or (last is not None and self.step >= last):
            return "finished"
        return "timeout" if self._out_of_time() else None

    def _solved(self) -> bool:
        return (
            self.spec.budget.stop_when_solved
            and bool(self.curve)
            and self._reaches_target(self.curve[-1].metrics.get("test", math.inf))
        )

    def _reaches_target(self, metric: float) -> bool:
        return self.spec.target is not None and metric <= self.spec.target

    # -- evaluation
    # ---------------------------------------------------------------------------------------------

    def evaluation_due(self) -> bool:
        """Whether this step is one at which the model is evaluated."""
        at_mark = self.step % self.spec.evaluation.eval_every == 0
        return at_mark and self.curriculum.at_full_length and self.diverged_at is None

    def evaluate(self) -> Point:
        """Evaluate the model as it is and add the point to the curve."""
        with self.stepper.judged():
            return self._evaluate()

    def _evaluate(self) -> Point:
        plan = self.spec.evaluation
        with self.clock.measuring("evaluation"):
            metrics: dict[str, float] = {
                s: self.data.evaluate(self.model, s, limit=plan.eval_limit)
                for s in plan.eval_splits
            }
            stop_early = self.spec.budget.stop_when_solved and self._reaches_target(
                metrics["valid"]
            )
            if stop_early and "test" not in metrics:
                metrics["test"] = self.data.evaluate(self.model, "test")
            geometry = self._geometry() if plan.geometry and self.spec.system.path_rules else {}
        mean = self.loss_sum / self.loss_count if self.loss_count else math.nan
        self.loss_sum, self.loss_count = 0.0, 0
        seconds, cpu = self.clock.seconds(), self.clock.cpu_seconds()
        point = Point(
            self.step, self.stream.epoch, seconds, cpu, mean, self.lr_factor, metrics, geometry
        )
        self.curve.append(point)
        valid = (
            metrics["valid"] if metrics["valid"] == metrics["valid"] else math.inf
        )  # no number is worse than any
        if plan.keep_best and (self.best is None or valid < self.best["valid"]):
            parameters = {
                name: value.detach().clone() for name, value in self.model.state_dict().items()
            }
            self.best = {"valid": valid, "step": self.step, "model": parameters}
        return point

    def _geometry(self) -> dict[str, float]:
        example = self.spec.task.example_inputs()
        first, second = (
            pathsgd.kappa(self.model, example, terms=terms, relative=True, output=0)
            for terms in ("first", "second")
        )
        rates = pathsgd.growth_rate(self.model, example, output=0)
        found = {
            "log_gamma_sq": pathsgd.log_gamma_sq(self.model, example, output=0).item(),
            "growth_rate": float(max(rates.values(), default=math.nan)),
        }
        name = "rnn.weight_hh_l0"
        if name in first:
            found["kappa2_over_kappa1"] = (second[name].norm() / first[name].norm()).item()
        return found

    def final_metrics(self) -> tuple[dict[str, float], int]:
        """Validation and test of the parameters that count, and the step they are of."""
        if self.diverged_at is not None and self.best is None:
            return {}, self.step
        judged = contextlib.nullcontext() if self.best is not None else self.stepper.judged()
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
        with self.clock.measuring("evaluation"), judged:
            metrics = {split: self.data.evaluate(self.model, split) for split in ("valid", "test")}
        return metrics, self.step if self.best is None else self.best["step"]

    # -- checkpoints
    # --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that decides how the run goes on."""
        return {
            "spec": self.hash,
            "step": self.step,
            "model": dict(self.model.state_dict()),
            "optimiser": self.stepper.optimiser.state_dict(),
            "stream": self.stream.state_dict(),
            "carried": self.together.whole(self.carried),
            "curriculum": self.curriculum.state_dict(),
            "rng": torch.get_rng_state(),
            "losses": [self.loss_sum, self.loss_count],
            "lr_factor": self.lr_factor,
            "best": self.best,
            "diverged_at": self.diverged_at,
            "curve": [vars(point) for point in self.curve],
            "promotions": [vars(promotion) for promotion in self.promotions],
            "clock": self.clock.state_dict(),
            "started": self.started,
            "resumed": self.resumed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        if state["spec"] != self.hash:
            raise CheckpointError("the checkpoint is of a run with other settings")
        self.step, self.lr_factor, self.best = state["step"], state["lr_factor"], state["best"]
        self.diverged_at = state.get("diverged_at")  # not in checkpoints of older versions
        self.model.load_state_dict(state["model"])
        self.stepper.optimiser.load_state_dict(state["optimiser"])
        self.stream.load_state_dict(state["stream"])
        self.carried = self.together.part_of(state["carried"])
        self.curriculum.load_state_dict(state["curriculum"])
        torch.set_rng_state(state["rng"])
        self.loss_sum, self.loss_count = state["losses"]
        self.curve = [Point(**point) for point in state["curve"]]
        self.promotions = [Promotion(**promotion) for promotion in state["promotions"]]
        self.clock.load_state_dict(state["clock"])
        self.started, self.resumed = state["started"], state["resumed"] + 1

    # -- what is told
    # -------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """For listeners."""
        running = self.curriculum.running_loss
        return Status(
            step=self.step,
            progress=self.share_used(),
            loss=math.nan if running is None else running,
            length=self.curriculum.length,
            metric=self.curve[-1].metrics["valid"] if self.curve else None,
            cpu_seconds=self.clock.cpu_seconds(),
            pid=os.getpid(),
        )

    def record(self, outcome: Outcome) -> Record:
        """The record of the run, judged on the validation and the test set."""
        metrics, best_step = self.final_metrics()
        detail = (
            f"loss not finite or above the limit at step {self.diverged_at}"
            if self.diverged_at
            else ""
        )
        if not all(map(math.isfinite, metrics.values())):
            outcome, detail, metrics = "diverged", detail or "the final figures are not finite", {}
        if outcome in ("finished", "timeout") and self._reaches_target(
            metrics.get("test", math.inf)
        ):
            outcome = "solved"
        return Record(
            spec=self.spec,
            outcome=outcome,
            steps=self.step,
            epochs=self.stream.epoch,
            seconds=self.clock.seconds(),
            cpu_seconds=self.clock.cpu_seconds(),
            metrics=metrics,
            best_step=best_step,
            parameters=sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            curve=tuple(self.curve),
            promotions=tuple(self.promotions),
            profile=self.clock.profile_now(),
            machine=machine(self.spec.threads),
            versions=versions(),
            commit=commit(),
            started=self.started,
            resumed=self.resumed,
            detail=detail,
        )
