"""What the library sees in a user's model: operations and rules, gamma^2, kappa, balance."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.errors import UnsupportedOperation
from pathsgd_lab.errors import LabError, UsageError


@dataclass(frozen=True)
class KappaRange:
    """kappa / gamma^2 over the entries of one parameter."""

    name: str
    shape: tuple[int, ...]
    low: float
    median: float
    high: float
    second: float | None
    """||kappa2|| / ||kappa1||, where asked for."""


@dataclass(frozen=True)
class Balance:
    """How far a model is from the best scaled form of its function."""

    free_nodes: int
    squared_weights: float
    """Sum of all squared parameters."""
    squared_weights_balanced: float
    """The least that any rescaling of units gives."""


@dataclass(frozen=True)
class Inspection:
    """Everything but the table of operations, which ``pathsgd.explain`` gives."""

    log_gamma_sq: float
    path_norm_1: float
    """Sum over paths of the product of |weights|: bounds the output for inputs in [-1, 1]."""
    kappas: tuple[KappaRange, ...]
    balance: Balance | None
    """None for a model without free nodes."""


def load_model(place: str) -> nn.Module:
    """The model that ``package.module:factory`` makes, or is."""
    module_name, colon, name = place.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"{place!r} does not name a model: write package.module:factory")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: one's own files first
    try:
        with own_code(module_name):
            module = importlib.import_module(module_name)
    except UsageError as failure:
        cause = failure.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{cause.name}."
        ):
            raise UsageError(
                f"no module {module_name!r} below {here} or among the installed packages"
            ) from None
        raise
    if not hasattr(module, name):
        public = ", ".join(n for n in vars(module) if not n.startswith("_")) or "nothing"
        raise UsageError(f"{module_name} has no {name!r}; it has {public}")
    found = getattr(module, name)
    model = found if isinstance(found, nn.Module) else _call(found, place)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{place} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _call(factory: Any, place: str) -> Any:
    if not callable(factory):
        raise UsageError(
            f"{place} is a {type(factory).__name__}, neither a model nor something that makes one"
        )
    needed = [
        p.name
        for p in inspect.signature(factory).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"{place} needs arguments ({', '.join(needed)}): write a function without any that "
            "calls it"
        )
    with own_code(place):
        return factory()


@contextlib.contextmanager
def own_code(place: str) -> Iterator[None]:
    """Around user code: an exception becomes one line, its prints go to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (LabError, UnsupportedOperation, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: it is not ours
        raise UsageError(f"{place} ends with {type(error).__name__}: {error}") from error


def parse_input(text: str) -> Tensor:
    """Zeros of a shape such as ``1,100,2``, or ``int:1,100`` for symbols."""
    kind, colon, sizes = text.rpartition(":")
    try:
        shape = [int(size) for size in sizes.split(",")]
        if min(shape) < 1 or kind not in ("", "int") or (colon and not kind):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{text!r} is no shape: write sizes such as 1,100,2, or int:1,100 for symbols"
        ) from None
    return torch.zeros(shape, dtype=torch.int64 if kind else torch.float32)


def inspect_model(model: nn.Module, inputs: Sequence[Tensor], second: bool) -> Inspection:
    """Measure a model that has a rule for every operation."""
    first = pathsgd.kappa(model, *inputs, relative=True)
    seconds = pathsgd.kappa(model, *inputs, terms="second", relative=True) if second else {}
    return Inspection(
        log_gamma_sq=pathsgd.log_gamma_sq(model, *inputs).item(),
        path_norm_1=pathsgd.path_norm(model, *inputs, order=1).item(),
        kappas=tuple(_range(name, value, seconds.get(name)) for name, value in first.items()),
        balance=_balance(model, inputs),
    )


def _range(name: str, first: Tensor, second: Tensor | None) -> KappaRange:
    flat = first.flatten()
    ratio = None if second is None else (second.norm() / first.norm()).item()
    low, median, high = flat.min().item(), flat.median().item(), flat.max().item()
    return KappaRange(name, tuple(first.shape), low, median, high, ratio)


def _balance(model: nn.Module, inputs: Sequence[Tensor]) -> Balance | None:
    count = pathsgd.node_spaces(model, *inputs).count
    if count == 0:
        return None
    balanced = pathsgd.balance(copy.deepcopy(model), *inputs)
    before, after = (
        sum(p.detach().double().square().sum().item() for p in m.parameters())
        for m in (model, balanced)
    )
    return Balance(count, before, after)
