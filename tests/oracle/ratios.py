"""The paper's table of ||kappa2(W_rec)|| / ||kappa1(W_rec)|| and ours: python -m oracle.ratios.

Setting: word-level language model, vocabulary of 10,000 one-hot words in and out, outputs at every
step, all weights uniform in [-0.1, 0.1], no biases; Frobenius norms over the recurrent matrix. The
all-ones input of the squared network contains every word, so u_j and v_j are sums of 10,000 squared
weights.

The paper's convention counts a pair of uses of a weight once, the derivative four times (see
errata.py), so the "exact" column is four times the "paper" one. With --init identity (W_rec = I,
the rest as before) kappa2 is nonzero only on the diagonal, and there kappa2 / kappa1 is T - 2 with
outputs at every step and 4 (T - 2) / 3 with the last output only: not negligible.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .graph import Array
from .rnn import SquaredRNN

PAPER = {
    100: {10: 0.00037, 20: 0.00044, 40: 0.00048},
    200: {10: 0.00027, 20: 0.00029, 40: 0.00032},
    400: {10: 0.00014, 20: 0.00016, 40: 0.00022},
}
"""The printed ratios, PAPER[H][T]."""

INITIALISATIONS = ("uniform", "identity")


@dataclass(frozen=True)
class Ratio:
    """One cell of the table, a ratio for each seed; arrays of shape (seeds,).

    diagonal: mean over units of kappa2[j, j] / kappa1[j, j] in the exact convention.
    """

    hidden: int
    steps: int
    exact: Array
    paper: Array
    diagonal: Array


def ratio_table(
    hidden: Sequence[int] = (100, 200, 400),
    steps: Sequence[int] = (10, 20, 40),
    seeds: Sequence[int] = range(5),
    init: str = "uniform",
    every_step: bool = True,
    vocabulary: int = 10_000,
) -> list[Ratio]:
    """||kappa2|| / ||kappa1|| of W_rec for every H and T, over the seeds."""
    if init not in INITIALISATIONS:
        raise ValueError(f"init must be one of {INITIALISATIONS}, got {init!r}")
    table = []
    for units in hidden:
        weights = [_squared_weights(units, vocabulary, init, seed) for seed in seeds]
        for length in steps:
            cells = [
                _cell(SquaredRNN(*squared, steps=length, every_step=every_step))
                for squared in weights
            ]
            exact, paper, diagonal = np.array(cells).T
            table.append(Ratio(units, length, exact, paper, diagonal))
    return table


def _squared_weights(
    units: int, vocabulary: int, init: str, seed: int
) -> tuple[Array, Array, Array]:
    """A = W_rec^2, u = row sums of W_in^2, v = column sums of W_out^2."""
    rng = np.random.default_rng([seed, units])

    def uniform(rows: int, columns: int) -> Array:
        return rng.uniform(-0.1, 0.1, size=(rows, columns))

    w_rec = np.eye(units) if init == "identity" else uniform(units, units)
    return (
        w_rec**2,
        (uniform(units, vocabulary) ** 2).sum(axis=1),
        (uniform(vocabulary, units) ** 2).sum(axis=0),
    )


def _cell(net: SquaredRNN) -> tuple[float, float, float]:
    """The exact ratio, the ratio in the paper's convention, and the exact ratio on the diagonal."""
    kappa1, kappa2 = net.kappa1_recurrent(), net.kappa2_recurrent("exact")
    norm = np.linalg.norm(kappa1)
    on_diagonal = float((np.diag(kappa2) / np.diag(kappa1)).mean())
    return (
        float(np.linalg.norm(kappa2) / norm),
        float(np.linalg.norm(net.kappa2_recurrent("paper")) / norm),
        on_diagonal,
    )


def format_table(table: Sequence[Ratio], with_paper: bool) -> str:
    """The table as text, "mean ± standard deviation over seeds" in each cell."""
    header = (
        f"{'H':>5} {'T':>5} {'printed':>10} "
        f"{'paper convention':>23} {'exact':>23} {'exact, diagonal':>23}"
    )
    lines = [header, "-" * len(header)]
    for cell in table:
        printed = PAPER.get(cell.hidden, {}).get(cell.steps) if with_paper else None
        shown = "-" if printed is None else f"{printed:.5f}"
        ours = " ".join(
            f"{_spread(values):>23}" for values in (cell.paper, cell.exact, cell.diagonal)
        )
        lines.append(f"{cell.hidden:>5} {cell.steps:>5} {shown:>10} {ours}")
    return "\n".join(lines)


def _spread(values: Array) -> str:
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{values.mean():.6f} ± {deviation:.6f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m oracle.ratios", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--init", choices=INITIALISATIONS, default="uniform", help="recurrent matrix"
    )
    parser.add_argument(
        "--outputs", choices=("every", "last"), default="every", help="steps whose output is read"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of random networks a cell")
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[100, 200, 400], help="numbers of units H"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[10, 20, 40], help="numbers of time steps T"
    )
    options = parser.parse_args(arguments)
    for name in ("seeds", "hidden", "steps"):
        if np.min(getattr(options, name)) < (3 if name == "steps" else 1):
            parser.error(
                f"--{name} must be at least {3 if name == 'steps' else 1}, got "
                f"{getattr(options, name)}"
            )
    every_step = options.outputs == "every"
    table = ratio_table(
        options.hidden, options.steps, range(options.seeds), options.init, every_step
    )
    print(
        f"||kappa2(W_rec)|| / ||kappa1(W_rec)||, {options.init} initialisation, outputs at "
        f"{options.outputs} step,"
    )
    print(
        f"mean ± standard deviation over {options.seeds} seeds; 'printed' is the figure in the "
        "paper\n"
    )
    print(format_table(table, with_paper=options.init == "uniform" and every_step))


if __name__ == "__main__":
    main()
