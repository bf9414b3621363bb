"""Problems, contenders with their usual rates, and the ingredients of PathAdam."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studies.compare import capped, g_sgd, step_bound  # noqa: F401 - they add optimisers

from pathsgd_lab.report.select import groups
from pathsgd_lab.run.optimisers.retired import RetiredOptimiser
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.study import Scale, run

BADLY_SCALED = 100.0
LATTICE = tuple(float(f"{digit}e{power}") for power in range(-6, 3) for digit in (1, 3))
"""The rates that grids are made of, a factor of about three apart."""


@dataclass(frozen=True)
class Problem:
    """A net and what it learns."""

    task: str
    system: str
    settings: dict[Scale, dict[str, Any]]
    until_solved: bool = False
    """Whether runs are long enough to solve it, so that tables say how many do."""


@dataclass(frozen=True)
class Contender:
    """An optimiser and its usual rate, the middle of its grid."""

    optimiser: str
    rate: float
    settings: dict[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    """Problems that it is run on; none: all."""


_DIGITS = {"limit": 20_000, "valid_size": 2_000, "eval_limit": 2}
_START = {"others_range": 0.3, "mean_bias": True}
_SMOKE: dict[str, Any] = {"steps": 4, "eval_every": 2, "batch_size": 8}
_TINY_DIGITS = {"subsample": 7, "hidden": 4, "limit": 40, "valid_size": 10, **_SMOKE}


def _digits(
    paper: dict[str, Any], laptop: dict[str, Any], **smoke: Any
) -> dict[Scale, dict[str, Any]]:
    return {
        "paper": {"eval_limit": 4, **paper},
        "laptop": {**_DIGITS, **laptop},
        "smoke": {**_TINY_DIGITS, **smoke},
    }


PROBLEMS: dict[str, Problem] = {
    "MLP on MNIST": Problem("smnist", "mlp", _digits(
        {"hidden": 512, "batch_size": 128, "steps": 4000, "eval_every": 200},
        {"subsample": 2, "hidden": 64, "batch_size": 64, "steps": 300, "eval_every": 15})),
    "CNN 2c2d on MNIST": Problem("smnist", "cnn", _digits(
        {"batch_size": 128, "steps": 4000, "eval_every": 200},
        {"subsample": 2, "hidden": 64, "channels": 4, "batch_size": 32, "steps": 160,
         "eval_every": 8}, channels=2)),
    "Autoencoder on MNIST": Problem("mnist_autoencoder", "autoencoder", _digits(
        {"batch_size": 128, "steps": 4000, "eval_every": 200},
        {"subsample": 2, "hidden": 64, "code": 16, "batch_size": 64, "steps": 300,
         "eval_every": 15}, code=2)),
    "Adding problem": Problem("adding", "rnn_path", {
        "paper": {"length": 400, "steps": 15_000, "eval_every": 500, **_START},
        "laptop": {"length": 100, "hidden": 64, "steps": 1000, "eval_every": 50, "valid_size": 500,
                   "test_size": 2000, **_START},
        "smoke": {"length": 6, "hidden": 4, "valid_size": 5, "test_size": 5, **_START, **_SMOKE}}),
    "Sequential MNIST": Problem("smnist", "rnn_path", _digits(
        {"others_range": 0.1, "epochs": 20.0, "eval_every": 550},
        {"subsample": 4, "hidden": 64, "others_range": 0.1, "batch_size": 32, "steps": 400,
         "eval_every": 20})),
    "Permuted MNIST": Problem("psmnist", "rnn_path", _digits(
        {"others_range": 0.1, "epochs": 20.0, "eval_every": 550},
        {"subsample": 4, "hidden": 64, "others_range": 0.1, "batch_size": 32, "steps": 400,
         "eval_every": 20})),
    "PTB characters": Problem("ptb_char", "rnn_path", {
        "paper": {"epochs": 8.0, "batch_size": 64, "eval_every": 500, "eval_limit": 50},
        "laptop": {"hidden": 64, "window": 25, "batch_size": 16, "steps": 300, "eval_every": 15,
                   "eval_limit": 10},
        "smoke": {"hidden": 4, "window": 6, **_SMOKE, "eval_limit": 2}}),
    "CTRNN on decisions": Problem("decision", "ctrnn", {
        "paper": {"hidden": 256, "length": 40, "steps": 5000, "eval_every": 250},
        "laptop": {"hidden": 32, "length": 16, "steps": 250, "eval_every": 12, "test_size": 2000},
        "smoke": {"hidden": 4, "length": 8, "valid_size": 5, "test_size": 5, **_SMOKE}}),
}  # fmt: skip

LIMIT = 3.0
"""The bound on growth rates, the library's default when the runs were made."""
AS_DEFAULT = {"growth_limit": LIMIT, "refresh_every": 1}
"""Settings of path-adam that make it PathAdam(model, lr), and with momentum=0.9 of
path-sgd-absolute."""

CONTENDERS: dict[str, Contender] = {
    "PathAdam": Contender("path-adam", 3e-3, AS_DEFAULT),
    "Adam": Contender("adam", 1e-3),
    "SGD, momentum": Contender("momentum", 3e-2),
    "PathSGD, momentum": Contender("path-sgd-absolute", 3e-2, {**AS_DEFAULT, "momentum": 0.9}),
    "PathAdam, relative": Contender("path-adam-relative", 1e-3, AS_DEFAULT),
    "PathAdam, capped by γ": Contender("path-adam-capped", 1e-3, AS_DEFAULT),
    "Muon": Contender("muon", 3e-3),
    "SOAP": Contender("soap", 3e-3),
    "Lion": Contender("lion", 3e-4),
    "Schedule-free AdamW": Contender("schedule-free", 3e-3, {"decay": "constant"}),
    "Prodigy": Contender("prodigy", 1.0),
    "RMSprop": Contender("rmsprop", 1e-3),
    "NAdam": Contender("nadam", 1e-3),
    "AdamW": Contender("adamw", 1e-3),
    "Muon in path coordinates": Contender("in-path", 3e-3, {**AS_DEFAULT, "inner": "muon"}),
    "SOAP in path coordinates": Contender("in-path", 3e-3, {**AS_DEFAULT, "inner": "soap"}),
    "G-SGD": Contender("g-sgd", 1.0, only=("MLP on MNIST",)),
}

OURS = (
    "PathAdam", "PathAdam, relative", "PathAdam, capped by γ", "PathSGD, momentum",
    "Muon in path coordinates",
    "SOAP in path coordinates",
)  # fmt: skip
"""The contenders that are no rivals."""

_DEFAULT = "path-adam"
_PATH = {"refresh_every": 1}
_ONCE = 10**6
"""Steps between two measurements of the metric that no run lives to see."""
INGREDIENTS: dict[str, Contender] = {
    "Adam, β2 0.999": Contender("adam", 1e-3),
    "Adam, β2 0.99": Contender("adam", 1e-3, {"beta2": 0.99}),
    "Adam, β2 0.99, bound on growth rates": Contender(
        "adam", 1e-3, {"beta2": 0.99, "growth_limit": LIMIT}
    ),
    "Adam, β2 0.99, bound on steps 0.3": Contender("adam-step-bound", 1e-3, {"beta2": 0.99}),
    "PathAdam (the default)": Contender(_DEFAULT, 1e-3, AS_DEFAULT),
    "… no bound": Contender(_DEFAULT, 1e-3, {**_PATH, "growth_limit": 0.0}),
    "… β2 0.999": Contender(_DEFAULT, 1e-3, {**AS_DEFAULT, "beta2": 0.999}),
    "… metric measured once": Contender(_DEFAULT, 1e-3, {**AS_DEFAULT, "refresh_every": _ONCE}),
    "… ρ = 0": Contender(_DEFAULT, 1e-3, {**AS_DEFAULT, "rho": 0.0}),
    "… ρ = 0, no bound": Contender(_DEFAULT, 1e-3, {**_PATH, "growth_limit": 0.0, "rho": 0.0}),
    "… relative": Contender("path-adam-relative", 1e-3, AS_DEFAULT),
    "… relative, capped by γ": Contender("path-adam-capped", 1e-3, AS_DEFAULT),
    "… relative, no bound": Contender("path-adam-relative", 1e-3, {**_PATH, "growth_limit": 0.0}),
}
INGREDIENT_PROBLEMS = ("Adding problem", "MLP on MNIST")
INGREDIENT_RATES = (1e-3, 3e-3, 3e-4, 1e-2)
SURVIVAL: dict[str, Contender] = {
    "PathAdam, relative": Contender("path-adam-relative", 1e-3, AS_DEFAULT),
    "… β2 0.999": Contender("path-adam-relative", 1e-3, {**AS_DEFAULT, "beta2": 0.999}),
    "… 30 steps of warm-up": Contender("path-adam-relative", 1e-3, {**AS_DEFAULT, "warmup": 30}),
    "… dual norm bounded by 0.1": Contender(
        "path-adam-relative", 1e-3, {**AS_DEFAULT, "clip": 0.1}
    ),
    "… ρ = 0": Contender("path-adam-relative", 1e-3, {**AS_DEFAULT, "rho": 0.0}),
    "… rate falling as γ rises": Contender("path-adam-capped", 1e-3, AS_DEFAULT),
    "PathAdam (the default)": Contender(_DEFAULT, 1e-3, AS_DEFAULT),
    "Adam, β2 0.999": Contender("adam", 1e-3),
}
"""What might keep a net without recurrence from dying at high rates."""
SURVIVAL_PROBLEM = "MLP on MNIST"
SURVIVAL_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SEEDS: dict[Scale, int] = {"paper": 3, "laptop": 3, "smoke": 1}


def spec_of(contender: Contender, problem: Problem, scale: Scale) -> RunSpec:
    """A contender on a problem, at its usual rate."""
    settings = {"decay": "linear", **problem.settings[scale], **contender.settings}
    return run(problem.task, problem.system, contender.optimiser, **settings, lr=contender.rate)


def can_run(spec: RunSpec) -> bool:
    """Whether the code of its optimiser is still there."""
    return not isinstance(spec.optimiser, RetiredOptimiser)


def nearest(rate: float) -> int:
    """Where a rate is on the lattice."""
    return min(range(len(LATTICE)), key=lambda i: abs(math.log(LATTICE[i] / rate)))


def shifted(rate: float, steps: int) -> float:
    """The rate so many steps of the grid away."""
    return LATTICE[max(0, min(len(LATTICE) - 1, nearest(rate) + steps))]


Contest = dict[tuple[str, str], list[Record]]
"""Records by the names of contender and problem."""


def contest(
    records: Sequence[Record],
    contenders: Mapping[str, Contender],
    problems: Mapping[str, Problem] = PROBLEMS,
) -> Contest:
    """The runs of each contender on each problem, at any scale, rate, start and seed."""
    known = {_method(spec): pair for pair, spec in _specs(contenders, problems)}
    found: Contest = {}
    for record in records:
        pair = known.get(_method(record.spec))
        if pair is not None:
            found.setdefault(pair, []).append(record)
    return found


def _specs(
    contenders: Mapping[str, Contender], problems: Mapping[str, Problem]
) -> Iterator[tuple[tuple[str, str], RunSpec]]:
    for label, problem in problems.items():
        for name, contender in contenders.items():
            if not contender.only or label in contender.only:
                for scale in problem.settings:
                    yield (name, label), spec_of(contender, problem, scale)


def _method(spec: RunSpec) -> str:
    (key,) = groups([spec], without=("lr", "seed", "unbalanced"))
    return key
