"""For every test: the same cases and random numbers in every run, and a summary of skips.

Hypothesis has two profiles. `deterministic`, the default, draws the same cases in every run, on
every machine. `explore` draws new ones and prints how to repeat a failure: `make explore`.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings
from hypothesis.internal.conjecture import providers

settings.register_profile(
    "deterministic",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    # How long a case takes says nothing about the code; fixtures are the same in every example.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("explore", settings.get_profile("deterministic"), derandomize=False)
settings.load_profile("deterministic")

# Hypothesis also tries the constants in all modules imported so far: which cases it draws would
# depend on the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants


class TorchRandom:
    """Torch's generator for hypothesis: the same state at the start of every example."""

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def getstate(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.default_generator.set_state(state)


TORCH_RANDOM = TorchRandom()  # hypothesis holds a weak reference
register_random(TORCH_RANDOM)


def seed() -> None:
    """The state from which every test, shared fixture and module draws."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts with the same random numbers, whatever ran before it in its process."""
    seed()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """So do fixtures that several tests share: any of those tests may be the first."""
    if fixturedef.scope != "function":
        seed()


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report() -> None:
    """So do test modules: some draw an input as they are imported."""
    seed()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` runs pytest twice and prints both summaries at its end."""
    parser.addoption("--skips", type=Path, help="file to which to append the summary of skips")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How many tests were skipped, and why; a reason names what to install."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    lines = [
        f"{count} skipped: {reason.removeprefix('Skipped: ')}"
        for reason, count in sorted(reasons.items())
    ]
    for line in lines:
        terminalreporter.write_line(line, yellow=True)
    if path := config.getoption("--skips"):
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
