"""The test of the theory that users run on their own model: is it, and its training, blind to node-wise rescaling?

    f_{T(p)} = f_p      gamma^2(T(p)) = gamma^2(p)      kappa_i(T(p)) = kappa_i(p) / c_i^2     for T: p_i -> c_i p_i

and, for an optimiser A, f_{A(T(p))} = f_{A(p)} step after step: the twins' outputs stay together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils._pytree import tree_map

from pathsgd.optim.base import PathOptimizer
from pathsgd.quantities.gamma import log_gamma_sq
from pathsgd.quantities.kappa import kappa
from pathsgd.quantities.rescaling import node_spaces, random_rescaling
from pathsgd.recording.record import Output, choose_output
from pathsgd.recording.validation import check_model

MakeOptimizer = Callable[[nn.Module], Optimizer] | type[Optimizer]


@dataclass(frozen=True)
class InvarianceReport:
    """What `check_invariance` found; print it to read it. All differences are relative."""

    free_nodes: int
    low: float
    high: float
    output: float
    """Between the outputs of the model and of its rescaled twin."""
    gamma_sq: float
    """Between their gamma^2."""
    kappa: float
    """Largest of all entries between kappa * p^2 of the two."""
    drift: dict[str, list[float]] = field(default_factory=dict)
    """For each optimiser, the difference of the twins' outputs after 1, 2, ... steps of training."""

    @property
    def ok(self) -> bool:
        """Whether everything is invariant, training under the optimiser that was asked for included."""
        return self.invariant(next(iter(self.drift), None))

    def invariant(self, optimizer: str | None = None, tolerance: float = 1e-6) -> bool:
        """Whether the model's path quantities are invariant, and its training under the optimiser of this name."""
        found = [self.output, self.gamma_sq, self.kappa, *(self.drift[optimizer] if optimizer else [])]
        return all(difference < tolerance for difference in found)

    def __str__(self) -> str:
        lines = [
            f"{self.free_nodes} free nodes, each rescaled by a factor between {self.low:g} and {self.high:g}; "
            "relative differences:",
            f"  output   {self.output:.1e}",
            f"  gamma^2  {self.gamma_sq:.1e}",
            f"  kappa    {self.kappa:.1e}",
        ]
        if self.drift:
            steps = len(next(iter(self.drift.values())))
            shown = sorted({1, (steps + 1) // 2, steps})
            width = max(map(len, self.drift))
            lines.append("outputs of the twins apart after training for")
            lines.append("  " + " " * width + "".join(f"{f'{n} steps':>12}" for n in shown))
            for name, values in self.drift.items():
                lines.append(f"  {name:<{width}}" + "".join(f"{values[n - 1]:>12.1e}" for n in shown))
        return "\n".join(lines)


def check_invariance(
    model: nn.Module,
    *inputs: Any,
    optimizer: MakeOptimizer | None = None,
    steps: int = 30,
    low: float = 1e-2,
    high: float = 1e2,
    output: Output = None,
    seed: int = 0,
) -> InvarianceReport:
    """Compare a model with a randomly rescaled twin, and their training under an optimiser beside SGD and Adam.

    Everything happens on copies in float64 and in evaluation mode (dropout off, batch normalisation fixed); the model
    itself is left alone. Only the shapes of `inputs` matter: the data, and targets for a squared error, are random.

    optimizer: PathSGD, PathAdam, a class of torch.optim, or a function that takes a model and returns an optimiser.
    low, high: bounds of the random factors, one for each free node.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> check_invariance(model, torch.ones(3, 4)).invariant()
    True
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    generator = torch.Generator().manual_seed(seed)
    check_model(model)
    model = copy.deepcopy(model).double().eval()
    data = tree_map(lambda a: _random_like(a, generator), inputs)
    twin = copy.deepcopy(model)
    random_rescaling(twin, *data, low=low, high=high, generator=generator, output=output)
    reference = _run(model, data, output)
    targets = torch.randn(reference.shape, generator=generator, dtype=torch.float64).to(reference.device)
    drift = {}
    if optimizer is not None:
        lr = float(_make(optimizer, copy.deepcopy(model)).param_groups[0]["lr"])
        rows: dict[str, MakeOptimizer] = {
            _name(optimizer, model): optimizer,
            "SGD": lambda m: SGD(m.parameters(), lr),
            "Adam": lambda m: Adam(m.parameters(), lr),
        }
        drift = {
            name: _drift(make, copy.deepcopy(model), copy.deepcopy(twin), data, targets, steps, output)
            for name, make in rows.items()
        }
    return InvarianceReport(
        free_nodes=node_spaces(model, *data, output=output).count,
        low=low,
        high=high,
        output=_apart(_run(twin, data, output), reference),
        gamma_sq=(log_gamma_sq(twin, *data, output=output) - log_gamma_sq(model, *data, output=output)).abs().item(),
        kappa=_kappa_apart(model, twin, data, output),
        drift=drift,
    )


def _random_like(a: Any, generator: torch.Generator) -> Any:
    if not isinstance(a, Tensor) or not a.is_floating_point():
        return a
    return torch.randn(a.shape, generator=generator, dtype=torch.float64).to(a.device)


def _run(model: nn.Module, data: tuple[Any, ...], output: Output) -> Tensor:
    with torch.no_grad():
        return choose_output(model(*data), output)


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _kappa_apart(model: nn.Module, twin: nn.Module, data: tuple[Any, ...], output: Output) -> float:
    """kappa * p^2 does not change; entries that no path uses are zero in both."""
    largest = 0.0
    ours, theirs = (kappa(m, *data, relative=True, terms="both", output=output) for m in (model, twin))
    for (name, p), q in zip(model.named_parameters(), twin.parameters()):
        a, b = ours[name] * p.detach() ** 2, theirs[name] * q.detach() ** 2
        different = torch.where(a == b, 0.0, (a - b).abs() / torch.maximum(a, b))
        largest = max(largest, float(different.max()))
    return largest


def _make(optimizer: MakeOptimizer, model: nn.Module) -> Optimizer:
    takes_the_model = not isinstance(optimizer, type) or issubclass(optimizer, PathOptimizer)
    make: Callable[[Any], Any] = optimizer  # torch.optim's own take parameters
    made = make(model if takes_the_model else model.parameters())
    if not isinstance(made, Optimizer):
        raise TypeError(f"optimizer must make a torch.optim.Optimizer from a model, it made {type(made).__name__}")
    return made


def _name(optimizer: MakeOptimizer, model: nn.Module) -> str:
    return optimizer.__name__ if isinstance(optimizer, type) else type(_make(optimizer, copy.deepcopy(model))).__name__


def _drift(
    make: MakeOptimizer, model: nn.Module, twin: nn.Module, data: tuple[Any, ...], targets: Tensor, steps: int,
    output: Output,
) -> list[float]:  # fmt: skip
    pair = [(m, _make(make, m)) for m in (model, twin)]
    found = []
    for _ in range(steps):
        for m, optimizer in pair:
            optimizer.zero_grad()
            (choose_output(m(*data), output) - targets).square().mean().backward()
            optimizer.step()
        found.append(_apart(_run(twin, data, output), _run(model, data, output)))
    return found
