"""One frozen, typed description of a training run, its JSON form and its hash.

    spec_to_json(spec) = {"task": {"name": "adding", "length": 100, ...}, "system": ..., ...};
        spec_from_json inverts it
    spec_hash(spec) = sha256 of the canonical JSON: sorted keys, no spaces, all fields

``paper_ref`` only says which figure of the paper a run belongs to, so it has no part in the hash.
Within a spec every setting has a name of its own, so that ``--lr`` or ``lr=1e-3`` needs no prefix.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from pathsgd_lab.errors import SpecError
from pathsgd_lab.files import UNREADABLE
from pathsgd_lab.run.optimisers import OPTIMISERS, Optimiser
from pathsgd_lab.run.optimisers.retired import RETIRED, retired
from pathsgd_lab.run.schedule import Curriculum, Schedule
from pathsgd_lab.systems import SYSTEMS, System
from pathsgd_lab.tasks import TASKS, Split, Task

DEFAULT_STEPS = 2500
SEEDS = 2**63
"""Seeds are what torch's generators take."""
MOST_UNBALANCED = 1e12
"""A weight is scaled by two units' factors: their product must be far inside float32's range."""
T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """When a run ends."""

    steps: int | None = None
    """Training steps; None: as many as the other limits allow, 2500 if there is none."""
    epochs: float | None = None
    """Passes over the training set."""
    seconds: float | None = None
    """Seconds of training and evaluation."""
    clock: Literal["cpu", "wall"] = "cpu"
    """What the seconds are: of processor time, or on the wall."""
    target: float | None = None
    """Metric at which the task counts as solved; None: the task's own, if it has one."""
    stop_when_solved: bool = False
    """End the run when validation and test set are solved."""
    explode: float = 1e30
    """Training loss above which a run counts as diverged."""

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} must be positive or None, got {limit}")

    @property
    def step_limit(self) -> int | None:
        """Steps at most, if they are limited."""
        if self.steps is None and self.epochs is None and self.seconds is None:
            return DEFAULT_STEPS
        return self.steps


@dataclass(frozen=True)
class EvaluationPlan:
    """When and on what the model is judged."""

    eval_every: int = 250
    """Steps between two evaluations (at full length only, with a curriculum)."""
    eval_splits: tuple[Split, ...] = ("valid",)
    """Splits to evaluate on in the course of the run; the test set comes at the end in any case."""
    eval_limit: int | None = None
    """Batches per evaluation in the course of the run; None: all."""
    keep_best: bool = True
    """Judge the parameters with the best validation at the end, not the last ones."""
    geometry: bool = False
    """Also record gamma^2, |kappa2| / |kappa1| and the growth rate at each evaluation."""

    def __post_init__(self) -> None:
        if self.eval_every < 1:
            raise ValueError(f"eval_every must be at least 1, got {self.eval_every}")
        if self.eval_limit is not None and self.eval_limit < 1:
            raise ValueError(f"eval_limit must be at least 1 or None, got {self.eval_limit}")
        if "valid" not in self.eval_splits:
            raise ValueError("eval_splits must contain valid, by which runs are compared")


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a training run."""

    task: Task
    system: System
    optimiser: Optimiser
    schedule: Schedule = field(default_factory=Schedule)
    curriculum: Curriculum = field(default_factory=Curriculum)
    budget: Budget = field(default_factory=Budget)
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    seed: int = 0
    """Decides the initial values and the order (or content) of the data."""
    batch_size: int | None = None
    """Sequences per step; None: the paper's for the task."""
    unbalanced: float = 1.0
    """u: the initial units are rescaled by random factors in [1/u, u]; the function stays."""
    by_powers_of_two: bool = False
    """Those factors are rounded to powers of two, which leaves every bit of the function alone."""
    threads: int = 1
    """Threads per process; small nets gain nothing from more."""
    paper_ref: str = ""
    """Which table or figure of the paper this run belongs to."""

    def __post_init__(self) -> None:
        for name, value in settings(self):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed must be from 0 to {SEEDS - 1}, got {self.seed}")
        if not 1.0 <= self.unbalanced <= MOST_UNBALANCED:
            raise ValueError(
                f"unbalanced must be from 1 to {MOST_UNBALANCED:g}, got {self.unbalanced}"
            )
        if self.by_powers_of_two and self.unbalanced == 1.0:
            raise ValueError(
                "by_powers_of_two says how units are rescaled, and unbalanced=1 does not rescale "
                "them"
            )
        if misfit := self.system.misfit(self.task):
            raise ValueError(misfit)
        if self.curriculum.first_length and not self.system.any_length:
            raise ValueError(
                f"{self.system.name} reads sequences of one length only; remove the length "
                "curriculum"
            )
        if self.unbalanced > 1.0 and not self.system.path_rules:
            raise ValueError(
                f"unbalanced needs a net of linear and ReLU parts, which {self.system.name} is not"
            )
        if self.threads < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise ValueError("threads and batch_size must be at least 1")
        if self.optimiser.needs_paths and not self.system.path_rules:
            raise ValueError(
                f"{self.optimiser.name} needs a net of linear and ReLU parts, which "
                f"{self.system.name} is not; choose sgd, adam or rmsprop, or a system such as "
                "rnn_path"
            )
        if self.optimiser.only_for not in (None, self.system.name):
            raise ValueError(f"{self.optimiser.name} is defined for {self.optimiser.only_for} only")
        if getattr(self.optimiser, "growth_limit", 0.0) > 0.0 and not self.system.path_rules:
            raise ValueError(
                f"growth_limit needs a net of linear and ReLU parts, which {self.system.name} is "
                "not"
            )
        if self.schedule.decay != "constant" and not self._has_an_end:
            raise ValueError(
                "a decaying rate needs an end: give steps, epochs or decay_steps, not seconds alone"
            )

    @property
    def _has_an_end(self) -> bool:
        return bool(self.schedule.decay_steps or self.budget.step_limit or self.budget.epochs)

    @property
    def batch(self) -> int:
        """Sequences per step."""
        return self.batch_size or self.task.paper.batch_size

    @property
    def target(self) -> float | None:
        """Metric at which the task counts as solved."""
        return self.task.solved if self.budget.target is None else self.budget.target

    @property
    def slug(self) -> str:
        """A readable, unique file name: task, system, optimiser, first digits of the hash."""
        return f"{self.task.name}-{self.system.name}-{self.optimiser.name}-{spec_hash(self)[:10]}"


REGISTRIES: dict[str, Mapping[str, type[Any]]] = {
    "task": TASKS,
    "system": SYSTEMS,
    "optimiser": OPTIMISERS,
}
"""The parts of a run that are chosen by name."""


PARTS: dict[str, type[Any]] = {
    "schedule": Schedule,
    "curriculum": Curriculum,
    "budget": Budget,
    "evaluation": EvaluationPlan,
}
"""The parts of a run that every run has."""


def component(kind: str, name: Any) -> type[Any]:
    """The class of a task, system or optimiser; one clear error for a name that does not exist."""
    registry = REGISTRIES[kind]
    if not isinstance(name, str) or name not in registry:
        raise SpecError(f"unknown {kind} {name!r}; choose one of {', '.join(registry)}")
    return registry[name]


def default_spec(task: str, system: str, optimiser: str | None = None) -> RunSpec:
    """The run with all settings at their defaults; the optimiser is the system's own by default."""
    chosen = component("system", system)
    return RunSpec(
        component("task", task)(), chosen(), component("optimiser", optimiser or chosen.optimiser)()
    )


def with_component(spec: RunSpec, kind: str, name: str) -> RunSpec:
    """The same run with another task, system or optimiser; settings that both have are kept."""
    old, new = getattr(spec, kind), component(kind, name)
    if type(old) is new:
        return spec
    shared = {f.name for f in dataclasses.fields(new)} & {f.name for f in dataclasses.fields(old)}
    defaults = type(old)()
    changed = {n: getattr(old, n) for n in shared if getattr(old, n) != getattr(defaults, n)}
    return dataclasses.replace(spec, **{kind: new(**changed)})


def settings(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    """Every setting of a run by its own name, the parts' names apart."""
    for part in dataclasses.fields(spec):
        value = getattr(spec, part.name)
        if dataclasses.is_dataclass(value):
            for inner in dataclasses.fields(value):
                yield inner.name, getattr(value, inner.name)
        else:
            yield part.name, value


def replace_settings(spec: RunSpec, **changes: Any) -> RunSpec:
    """The run with some settings changed, each named as in ``settings``."""
    top: dict[str, Any] = {}
    for part in dataclasses.fields(spec):
        value = getattr(spec, part.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = {
                f.name: changes.pop(f.name) for f in dataclasses.fields(value) if f.name in changes
            }
            if inner:
                top[part.name] = dataclasses.replace(value, **inner)
        elif part.name in changes:
            top[part.name] = changes.pop(part.name)
    if changes:
        known = ", ".join(sorted(name for name, _ in settings(spec)))
        raise SpecError(f"no setting {', '.join(sorted(changes))} in this run; it has {known}")
    return dataclasses.replace(spec, **top)


def spec_to_json(spec: RunSpec) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings, with every field."""
    result: dict[str, Any] = {}
    for part in dataclasses.fields(spec):
        value: Any = getattr(spec, part.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in dataclasses.asdict(value).items()
            }
            named = {"name": getattr(spec, part.name).name} if part.name in REGISTRIES else {}
            result[part.name] = {**named, **fields}
        else:
            result[part.name] = value
    return result


def spec_from_json(data: Any) -> RunSpec:
    """The spec that ``spec_to_json`` wrote; fields that are missing get their defaults."""
    given = _table(data, "the run")
    arguments: dict[str, Any] = {}
    for part, registry in REGISTRIES.items():
        content = _table(given.pop(part, {}), part)
        if "name" not in content:
            raise SpecError(
                f"the run has no {part}: give it as {{'name': ...}}, one of {', '.join(registry)}"
            )
        kind = component(part, content.pop("name"))
        if part == "optimiser" and RETIRED & content.keys():
            kind = retired(cast(Any, kind))
        arguments[part] = _build(kind, content, part)
    for part, kind in PARTS.items():
        arguments[part] = _build(kind, _table(given.pop(part, {}), part), part)
    return _build(RunSpec, {**given, **arguments}, "run")


def read_spec(path: Path) -> RunSpec:
    """The spec in a file that holds one, or a record of one."""
    try:
        content = msgspec.json.decode(path.read_bytes())
        return spec_from_json(
            content["spec"] if isinstance(content, dict) and "spec" in content else content
        )
    except (*UNREADABLE, SpecError) as error:
        raise SpecError(f"{path} is not the JSON of a run: {error}") from error


def canonical_json(data: Any) -> str:
    """One text for one value: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def spec_hash(spec: RunSpec) -> str:
    """sha256 of the canonical JSON without ``paper_ref``."""
    # There and back again, so that lr=1 and lr=1.0 are the same run.
    return json_hash(spec_to_json(spec_from_json(spec_to_json(spec))))


def json_hash(settings: Mapping[str, Any]) -> str:
    """``spec_hash`` of a run that is given as JSON, with the settings that are written there."""
    content = {name: value for name, value in settings.items() if name != "paper_ref"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(f"{where} must be an object with named settings, got {value!r:.40}")
    return dict(value)


def _build(kind: type[T], content: Mapping[str, Any], where: str) -> T:
    """A dataclass from plain values, checked against its annotations."""
    hints = _hints(cast(Any, kind))
    names = {f.name for f in dataclasses.fields(cast(Any, kind))}
    unknown = sorted(set(content) - names)
    if unknown:
        raise SpecError(
            f"{where} has no setting {', '.join(unknown)}; it has {', '.join(sorted(names))}"
        )
    chosen = {
        name: _convert(value, hints[name], f"{where}.{name}") for name, value in content.items()
    }
    try:
        return kind(**chosen)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where}: {error}") from error


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` as its annotation requires: JSON has no tuples and may write 1.0 as 1."""
    if dataclasses.is_dataclass(value):
        return value  # a part that is built already
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        choices = (
            f" must be one of {', '.join(typing.get_args(hint))}"
            if typing.get_origin(hint) is Literal
            else ""
        )
        raise SpecError(f"{where}{choices}: {error}") from error
