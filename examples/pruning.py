"""How many weights of a digit classifier can go, by magnitude and by path share, in two scalings.

    python examples/pruning.py

The net is trained once, written down in a second scaling, and pruned without any training after.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from torch import nn
from torch.nn.utils import prune

import pathsgd
from mnist import FACTOR, NETS, accuracy, images, rescaled, trained, write_record

AMOUNTS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)


@dataclass(frozen=True)
class Options:
    """Accuracy after pruning, for two nets, two scores and two scalings."""

    data_dir: Path | None = None
    """Where the four files of MNIST are; None: $PATHSGD_DATA, or the user's cache directory."""
    epochs: int = 2
    seeds: int = 2
    limit: int = 0
    """Use only the first so many images; 0: all."""
    out: Path = Path("examples/records/pruning.json")
    """Where the record goes."""


def pruned(net: nn.Module, by_share: bool, amount: float, example: object) -> nn.Module:
    """A copy without this part of its weights."""
    net = copy.deepcopy(net)
    share = pathsgd.path_share(net, example)
    scores = {
        (module, "weight"): share[f"{name}.weight"]
        for name, module in net.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    }
    prune.global_unstructured(
        list(scores),
        prune.L1Unstructured,
        importance_scores=scores if by_share else None,
        amount=amount,
    )
    return net


def main(options: Options) -> None:
    x, y = images("train", options.data_dir, options.limit)
    test = images("test", options.data_dir, options.limit)
    rows = []
    for kind in NETS:
        for seed in range(options.seeds):
            net = trained(kind, seed, options.epochs, x, y)
            for scaling, model in (("as trained", net), ("rescaled", rescaled(net, x, seed))):
                for score in ("magnitude", "path share"):
                    curve = [
                        accuracy(pruned(model, score == "path share", a, x[:1]), *test)
                        for a in AMOUNTS
                    ]
                    rows.append(
                        {
                            "net": kind,
                            "seed": seed,
                            "scaling": scaling,
                            "score": score,
                            "accuracy": curve,
                        }
                    )
                    print(
                        f"{kind} {seed} {scaling:10} {score:10}",
                        *(f"{value:.3f}" for value in curve),
                        flush=True,
                    )
    chosen = {
        name: value for name, value in asdict(options).items() if name not in ("data_dir", "out")
    }
    write_record(
        options.out,
        __file__,
        {**chosen, "factor": FACTOR, "amounts": AMOUNTS, "images": len(x)},
        rows,
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
