"""One record of one entry: what the library says of the model, and its training beside Adam's."""

from __future__ import annotations

import copy
import inspect
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import pathsgd
from zoo.entry import Entry, Task
from zoo.faults import HEAVY

SEEN_AT_ONCE = 10
"""How many steps the reported loss is the mean of."""


def record(entry: Entry) -> dict[str, Any]:
    torch.manual_seed(0)
    task, steps = entry.make(), entry.steps
    task.model.train()
    metric = inspect.signature(pathsgd.PathAdam).parameters["metric"].default
    result: dict[str, Any] = {
        "field": entry.field,
        "model": entry.name,
        "metric": metric,
        "steps": steps,
    }
    result["rate"] = entry.rate
    result["parameters"] = sum(p.numel() for p in task.model.parameters())
    explanation = pathsgd.explain(task.model, *task.inputs(*task.batches[0]), **task.options)
    if explanation.problem is not None:
        problem = explanation.problem
        return {
            **result,
            "refused": {
                "operation": problem.operation,
                "where": problem.where,
                "why": problem.advice,
            },
        }
    result["free_nodes"] = sum(explanation.free_nodes.values())
    if result["parameters"] <= HEAVY:
        result["invariance"] = _invariance(task, entry.rate)
    return {**result, **_beside_adam(task, steps, entry.rate)}


def _invariance(task: Task, rate: float) -> dict[str, Any]:
    if not pathsgd.node_spaces(task.model, *task.inputs(*task.batches[0]), **task.options).count:
        return {"ok": True, "free nodes": 0}
    make = lambda m: pathsgd.PathAdam(m, lr=rate, **task.options)  # noqa: E731
    report = pathsgd.check_invariance(
        task.model,
        *task.inputs(*task.batches[0]),
        optimizer=make,
        steps=2,
        low=0.1,
        high=10,
        **task.options,
    )
    drift = max(next(iter(report.drift.values())))
    found = {
        "output": report.output,
        "gamma_sq": report.gamma_sq,
        "kappa": report.kappa,
        "drift": drift,
    }
    return {"ok": report.ok, **found}


class Side:
    """One optimiser's half of the comparison."""

    def __init__(self, task: Task, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        self.task, self.model = task, copy.deepcopy(task.model)
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer = make(self.model)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.with_gradient: set[str] = set()

    def step(self, k: int) -> None:
        batch = self.task.batches[k % len(self.task.batches)]
        torch.manual_seed(1000 + k)
        begun = time.process_time()
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, *batch)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.process_time() - begun)
        self.losses.append(loss.item())
        if k < 3 or k % 20 == 0:
            grads = ((n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None)
            self.with_gradient |= {name for name, grad in grads if bool(grad.any())}

    def still(self) -> list[str]:
        """Parameters that had a gradient and never moved."""
        moved = {n for n, p in self.model.named_parameters() if not torch.equal(p, self.start[n])}
        return sorted(self.with_gradient - moved)

    def largest(self) -> float:
        return max(float(p.detach().abs().max()) for p in self.model.parameters())


def _beside_adam(task: Task, steps: int, rate: float) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        path = Side(task, lambda m: pathsgd.PathAdam(m, lr=rate, **_with_example(task)))
        adam = Side(task, lambda m: torch.optim.Adam(m.parameters(), lr=rate))
        for k in range(
            steps
        ):  # in turn, so that the ratio of their times means something on a busy machine
            path.step(k)
            adam.step(k)
            if not math.isfinite(path.losses[-1]):
                break
    usual = statistics.median(adam.seconds[1:])
    return {
        "loss": {"first": path.losses[0], "path": _tail(path.losses), "adam": _tail(adam.losses)},
        "largest_loss": max(path.losses),
        "largest_weight": {"path": path.largest(), "adam": adam.largest()},
        "never_moved": path.still(),
        "cost": {
            "step": statistics.median(path.seconds[1:]) / usual,
            "first": path.seconds[0] / usual,
        },
        "warnings": sorted({str(w.message)[:200] for w in told if "pathsgd" in str(w.filename)}),
    }


def _with_example(task: Task) -> dict[str, Any]:
    """Models that are trained through another method than forward need an example."""
    if not task.options:
        return {}
    return {**task.options, "example_inputs": task.inputs(*task.batches[0])}


def _tail(losses: list[float]) -> float:
    return sum(losses[-SEEN_AT_ONCE:]) / len(losses[-SEEN_AT_ONCE:])
