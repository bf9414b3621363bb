"""One training step: Path-SGD with the fused RNN against plain SGD with torch.nn.RNN.

    python benchmarks/steps.py [--threads 1 2] [--settings A100 C50] [--seconds 6]
        [--jax PYTHON] [--json FOLDER]

Columns are ratios to the plain SGD step with torch.nn.RNN:

    naive          kappa1 by a second pass of a squared copy
    fused          SGD with pathsgd.nn.RNN
    path           PathSGD with pathsgd.nn.RNN, gradient / kappa, metric measured at every step
    path_default   the same with the library's defaults
    kappa, kappa_both   the metric's share, as an optimiser measures it
    identity       kappa_both of a net that starts from the identity
    limit          the step's flops, zeros included, at the speed of a large matrix product
                   measured in the same run

layers.py measures the layer alone, beside oneDNN and a compiled scan. --page writes the records'
tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jax_steps import jax_seconds
from models import HERE, into_page
from settings import (
    SETTINGS,
    Net,
    Setting,
    batch_of,
    gemm_peak,
    interleaved,
    loss_of,
    machine,
    make_net,
    measurement,
    training_step,
)
from torch import nn

import pathsgd

BEGIN, RECORDS = "<!-- benchmark steps -->\n", ("steps-1", "steps-2", "steps-1-jax")
GOALS = {
    "path": {"A100": 0.22, "A400": 0.18, "A750": 0.16, "M784": 0.25, "W20": 0.80, "C50": 0.72},
    "kappa": {"A100": 0.03, "A400": 0.03, "A750": 0.03, "M784": 0.03, "W20": 0.03, "C50": 0.06},
    "kappa_both": dict.fromkeys(("A100", "A400", "A750", "M784", "W20"), 0.10),
    "identity": dict.fromkeys(("A100", "A400", "A750", "M784", "W20"), 0.10),
}
"""For one thread with AVX-512."""
COLUMNS = (
    "naive",
    "fused",
    "path",
    "path_default",
    "kappa",
    "kappa_both",
    "identity",
    "limit",
    "jax",
)


def naive_path_step(net: Net, setting: Setting, lr: float = 1e-12) -> Callable[[], None]:
    """What one writes first: square a copy of the model and run it on ones."""
    x, y = batch_of(setting)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        loss_of(net, x, y, fused_loss=False).backward()
        squared = copy.deepcopy(net)
        with torch.no_grad():
            for p in squared.parameters():
                p.square_()
        ones = torch.ones(setting.steps, 1, setting.inputs)
        if squared.embedding is not None:
            ones = squared.embedding.weight.sum(0).expand(setting.steps, 1, setting.inputs)
        states, last = squared.rnn(ones)
        squared.out(states if setting.every_step else last[0]).sum().backward()
        with torch.no_grad():
            for p, q in zip(net.parameters(), squared.parameters()):
                if p.grad is not None:
                    p.addcdiv_(p.grad, q.grad, value=-lr)

    return step


def identity_net(setting: Setting) -> Net:
    """A recurrent matrix without a spectral gap: kappa2 has no short cut."""
    net = make_net(setting, pathsgd.nn.RNN)
    nn.init.eye_(net.rnn.weight_hh_l0)
    return net


def measure_setting(name: str, seconds: float, jax_python: str | None) -> dict[str, float]:
    setting = SETTINGS[name]
    plain, naive = make_net(setting, nn.RNN), make_net(setting, nn.RNN)
    fused, path = make_net(setting, pathsgd.nn.RNN), make_net(setting, pathsgd.nn.RNN)
    x, _ = batch_of(setting)
    paper_rule = pathsgd.PathSGD(
        path, 1e-9, metric=pathsgd.Metric(0.0), clip=None, growth=None, example_inputs=(x,)
    )
    default = pathsgd.PathSGD(path, 1e-9, example_inputs=(x,))
    functions: dict[str, Callable[[], object]] = {
        "sgd": training_step(
            plain, setting, torch.optim.SGD(plain.parameters(), 1e-9), fused_loss=False
        ),
        "naive": naive_path_step(naive, setting),
        "fused": training_step(
            fused, setting, torch.optim.SGD(fused.parameters(), 1e-9), fused_loss=True
        ),
        "path": training_step(path, setting, paper_rule, fused_loss=True),
        "path_default": training_step(path, setting, default, fused_loss=True),
        "kappa": measurement(path, setting, "first"),
    }
    if setting.hidden <= 200:
        functions["kappa_both"] = measurement(path, setting, "both")
        functions["identity"] = measurement(identity_net(setting), setting, "both")
    times = interleaved(functions, seconds)
    if jax_python:
        times["jax"] = jax_seconds(jax_python, name, torch.get_num_threads(), seconds)
    return times


def table(records: dict[str, dict[str, Any]]) -> str:
    """The records as the page has them; what is within its goal is bold."""
    lines = [""]
    for record in records.values():
        columns = [c for c in COLUMNS if any(c in row["ratios"] for row in record["rows"])]
        kernel, speed = (
            record["backend"].split(" kernel")[0],
            record["product_flops_per_second"] / 1e9,
        )
        title = f"{record['threads']} thread(s), {kernel}, large product {speed:.0f} GFLOP/s"
        lines += [
            f"| {title} | sgd, ms | {' | '.join(columns)} |",
            "| --- |" + " ---: |" * (len(columns) + 1),
        ]
        for row in record["rows"]:
            cells = [_cell(row["setting"], column, row["ratios"]) for column in columns]
            lines.append(
                f"| {row['setting']} | {1e3 * row['sgd_seconds']:.2f} | {' | '.join(cells)} |"
            )
        lines.append("")
    goals = [
        f"| {name} | {' | '.join(str(of.get(s, '')) for s in SETTINGS)} |"
        for name, of in GOALS.items()
    ]
    head = [f"| goals | {' | '.join(SETTINGS)} |", "| --- |" + " ---: |" * len(SETTINGS)]
    return "\n".join([*lines, *head, *goals, "", ""])


def _cell(setting: str, column: str, ratios: dict[str, float]) -> str:
    if column not in ratios:
        return ""
    is_met = ratios[column] <= GOALS.get(column, {}).get(setting, -1.0)
    return f"**{ratios[column]:.3f}**" if is_met else f"{ratios[column]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument(
        "--jax",
        metavar="PYTHON",
        help="an interpreter that has jax: a scan+jit SGD step beside them",
    )
    parser.add_argument("--json", type=Path, help="directory for the record")
    parser.add_argument(
        "--page", action="store_true", help="only put the tables of the records into the page"
    )
    options = parser.parse_args()
    if options.page:
        into_page(
            BEGIN,
            table({n: json.loads((HERE / "records" / f"{n}.json").read_text()) for n in RECORDS}),
        )
        return
    torch.set_flush_denormal(True)
    for threads in options.threads:
        torch.set_num_threads(threads)
        peak, rows = gemm_peak(), []
        print(
            f"{threads} thread(s), {pathsgd.nn.backend()}, large product {peak / 1e9:.0f} GFLOP/s"
        )
        print(f"{'':6}{'sgd ms':>9}" + "".join(f"{c:>13}" for c in COLUMNS))
        for name in options.settings:
            times = measure_setting(name, options.seconds, options.jax)
            base = times["sgd"]
            ratios = {k: t / base for k, t in times.items() if k != "sgd"}
            ratios["limit"] = SETTINGS[name].flops / peak / base
            rows.append({"setting": name, "sgd_seconds": base, "ratios": ratios})
            cells = [f"{ratios[c]:13.3f}" if c in ratios else f"{'':13}" for c in COLUMNS]
            print(f"{name:6}{base * 1e3:9.2f}" + "".join(cells), flush=True)
        if options.json:
            options.json.mkdir(parents=True, exist_ok=True)
            record = {
                **machine(),
                "threads": threads,
                "product_flops_per_second": peak,
                "rows": rows,
            }
            (options.json / f"steps-{threads}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
