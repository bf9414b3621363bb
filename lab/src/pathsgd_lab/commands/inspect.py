"""``pathsgd inspect package.module:factory --input 1,100,2``: a model of one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

import pathsgd
from pathsgd_lab import flags
from pathsgd_lab.commands.common import make_console
from pathsgd_lab.errors import UsageError
from pathsgd_lab.tools.inspection import (
    Inspection,
    inspect_model,
    load_model,
    own_code,
    parse_input,
)


@dataclass(frozen=True)
class InspectOptions:
    """Show what the library sees in a model: operations and rules, gamma^2, kappa, balance."""

    model: tyro.conf.Positional[str]
    """Where the model is: package.module:factory, a function without arguments that makes it, or
    the model itself."""
    input: tuple[str, ...]
    """Shape of each input, such as 1,100,2; int:1,100 for symbols."""
    second: bool = False
    """Also measure kappa2, which takes long where weights are shared in other ways than by a
    recurrent layer."""


def main(arguments: Sequence[str]) -> int:
    """Parse, explain, measure; exit code 1 for a model with an operation that has no rule."""
    options = flags.parse(InspectOptions, arguments, "pathsgd inspect")
    inputs = [parse_input(text) for text in options.input]
    if not inputs:
        raise UsageError("give the shape of the model's input: --input 1,100,2")
    model = load_model(options.model)
    where = f"{options.model} on {' '.join(options.input)}"
    with own_code(where):
        explanation = pathsgd.explain(model, *inputs)
    print(explanation)
    if not explanation.supported:
        return 1
    with own_code(where):
        found = inspect_model(model, inputs, options.second)
    show(found, make_console())
    return 0


def show(found: Inspection, console: Console) -> None:
    """Print the figures."""
    gamma_sq = math.exp(found.log_gamma_sq) if found.log_gamma_sq < 700.0 else math.inf
    console.print(f"\ngamma^2  {gamma_sq:.6g}  (log {found.log_gamma_sq:.6g})", highlight=False)
    console.print(f"sum over paths of |weights|  {found.path_norm_1:.6g}", highlight=False)
    table = Table(
        "parameter",
        "shape",
        "lowest",
        "median",
        "highest",
        title="kappa / gamma^2",
        title_justify="left",
    )
    if any(k.second is not None for k in found.kappas):
        table.add_column("||kappa2|| / ||kappa1||")
    for k in found.kappas:
        row = [
            k.name,
            "x".join(map(str, k.shape)),
            f"{k.low:.3g}",
            f"{k.median:.3g}",
            f"{k.high:.3g}",
        ]
        table.add_row(*row, *([] if k.second is None else [f"{k.second:.3g}"]))
    console.print(table)
    if found.balance is None:
        console.print("balance  no unit can be rescaled")
        return
    b = found.balance
    ratio = (
        b.squared_weights / b.squared_weights_balanced if b.squared_weights_balanced else math.inf
    )
    console.print(
        f"balance  {b.free_nodes} units can be rescaled; squared weights {b.squared_weights:.6g}, "
        f"{b.squared_weights_balanced:.6g} when balanced ({ratio:.3g} times less)",
        highlight=False,
    )
