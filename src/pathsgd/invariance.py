"""A numerical check on the user's own model: do node-wise rescalings leave it and training alone?

    f_{T(p)} = f_p        gamma^2(T(p)) = gamma^2(p)        kappa_i(T(p)) = kappa_i(p) / c_i^2
    for every rescaling T: p_i -> c_i p_i

and, for an optimiser A, f_{A(T(p))} = f_{A(p)} step after step: the twins' outputs stay together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.overrides import TorchFunctionMode

from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.nodes import spaces_of
from pathsgd.network.record.inputs import Call, call_of, is_sparse, map_tensors, numbered_tensors
from pathsgd.network.record.model import check_model
from pathsgd.network.record.outputs import Output, choose, watched
from pathsgd.network.record.record import record
from pathsgd.network.record.recorder import is_recording
from pathsgd.network.squared import Evaluation
from pathsgd.optim.base import PathOptimizer
from pathsgd.paths.kappa import Kappa
from pathsgd.paths.rescaling import apply, random_alpha

MakeOptimizer = Callable[[nn.Module], Optimizer] | type[Optimizer]
TOLERANCE = 1e-6
"""Largest difference that counts as rounding."""


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
    """For each optimiser, the difference of the twins' outputs after 1, 2, ... training steps."""

    @property
    def ok(self) -> bool:
        """Whether the model's path quantities, and its training if checked, are invariant."""
        return self.invariant(next(iter(self.drift), None))

    def invariant(self, optimizer: str | None = None, tolerance: float = TOLERANCE) -> bool:
        """Whether path quantities, and training under the optimiser of this name, are invariant."""
        found = [
            self.output,
            self.gamma_sq,
            self.kappa,
            *(self.drift[optimizer] if optimizer else []),
        ]
        return all(difference < tolerance for difference in found)

    def __str__(self) -> str:
        lines = [
            f"a twin of the model, its {self.free_nodes} free units rescaled by factors "
            f"between {self.low:g} and "
            f"{self.high:g}; relative differences:",
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
                lines.append(
                    f"  {name:<{width}}" + "".join(f"{values[n - 1]:>12.1e}" for n in shown)
                )
        what = next((f"training by {name}" for name in self.drift), "the model")
        verdict = "invariant" if self.ok else "NOT invariant"
        lines.append(f"{what} is {verdict}: differences below {TOLERANCE:g} are rounding")
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
    """Compare a model with a randomly rescaled twin, also in training: optimizer, SGD and Adam.

    Works on copies in float64, in the model's current mode; the model itself is not changed. Both
    twins draw the same random numbers in forward. Gaussian noise is replaced by zeros, because it
    is not rescaled. Only the shapes of `inputs` matter, and the values of those that are structure:
    all other data are random, and so are the targets of the squared error.

    optimizer: PathSGD, PathAdam, a class of torch.optim, or a function that makes an optimiser from
        a model.
    low, high: bounds of the random factors, one for each free node.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> check_invariance(model, torch.ones(3, 4)).invariant()
    True
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    with torch.random.fork_rng(), _InDouble():
        return _compared(model, inputs, optimizer, steps, low, high, output, seed)


def _compared(
    model: nn.Module, inputs: tuple[Any, ...], optimizer: MakeOptimizer | None, steps: int,
    low: float, high: float, output: Output, seed: int,
) -> InvarianceReport:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    check_model(model)
    refuse_sharded(model, "check_invariance")
    model = copy.deepcopy(model).double()
    data = _random_data(model, inputs, output, generator)
    twin = copy.deepcopy(model)
    spaces = _spaces(twin, data, output)
    if not spaces.count:
        raise ValueError(
            "the model has no free node: every unit is an input, an output or tied to one"
        )
    apply(dict(twin.named_parameters()), spaces, random_alpha(spaces.count, low, high, generator))
    reference = _run(model, data, output)
    targets = torch.randn(reference.shape, generator=generator, dtype=torch.float64).to(
        reference.device
    )
    drift = {}
    if optimizer is not None:
        lr = float(_make(optimizer, copy.deepcopy(model)).param_groups[0]["lr"])
        rows: dict[str, MakeOptimizer] = {
            _name(optimizer, model): optimizer,
            "SGD": lambda m: SGD(m.parameters(), lr),
            "Adam": lambda m: Adam(m.parameters(), lr),
        }
        drift = {
            name: _drift(
                make, copy.deepcopy(model), copy.deepcopy(twin), data, targets, steps, output
            )
            for name, make in rows.items()
        }
    return InvarianceReport(
        free_nodes=spaces.count,
        low=low,
        high=high,
        output=_apart(_run(twin, data, output), reference),
        gamma_sq=(_log_gamma_sq(twin, data, output) - _log_gamma_sq(model, data, output))
        .abs()
        .item(),
        kappa=_kappa_apart(model, twin, data, output),
        drift=drift,
    )


_GAUSSIAN = frozenset({"randn", "randn_like", "normal", "normal_"})


class _InDouble(TorchFunctionMode):
    """float64 wherever forward writes float32 (torch.zeros, casts); zeros for Gaussian noise.

    Added noise has a fixed scale, so it would affect a rescaled twin differently: neither twin gets
    any. State left by an earlier call would differ between twins: both start without it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "float" and args:
            return args[0].double()
        if name == "carried":
            return torch.zeros_like(args[0])
        # Top-level arguments only: this runs for every operation, and deepcopy's memo is large.
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {
            key: torch.float64 if a is torch.float32 else a for key, a in (kwargs or {}).items()
        }
        result = func(*args, **kwargs)
        is_noise = (
            name in _GAUSSIAN and kwargs.get("generator") is None
        )  # data and targets have one of their own
        return result.zero_() if is_noise and not is_recording() else result

    def __enter__(self) -> _InDouble:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*exception)


def _random_data(
    model: nn.Module, inputs: tuple[Any, ...], output: Output, generator: torch.Generator
) -> Call:
    """Numbers at random for every input whose values are not structure."""
    call = map_tensors(lambda a: a.double() if a.is_floating_point() else a, call_of(model, inputs))
    recording = record(model, call, output)
    structural, used = recording.structural, {v for step in recording.steps for v in step.operands}
    values = iter(recording.inputs)
    numbers = iter(range(len(numbered_tensors(call))))

    def drawn(a: Tensor) -> Tensor:
        is_number = a.is_floating_point() and not is_sparse(a)
        is_state = is_number and next(values) not in used
        if next(numbers) in structural or not is_number:
            return a
        if is_state:  # of a recurrent layer, and no path starts there
            return torch.zeros_like(a)
        return torch.randn(a.shape, generator=generator, dtype=torch.float64).to(a.device)

    return map_tensors(drawn, call)


def _spaces(model: nn.Module, data: Call, output: Output) -> NodeSpaces:
    """The rescalings that preserve the measured outputs; other outputs are not compared."""
    recording = record(model, data, output)
    return spaces_of(replace(recording, returned=[]), dict(model.named_parameters()))


def _log_gamma_sq(model: nn.Module, data: Call, output: Output) -> Tensor:
    return Evaluation(record(model, data, output), dict(model.named_parameters())).total.log()


def _outputs(model: nn.Module, data: Call, output: Output, dice: int = 0) -> Tensor:
    """The measured outputs, end to end. dice: where random numbers start."""
    torch.manual_seed(dice)
    with watched(model, output) as submodules:
        result = model(*data.args, **data.kwargs)
    return torch.cat([t.reshape(-1) for t in choose(result, output, submodules)])


def _run(model: nn.Module, data: Call, output: Output) -> Tensor:
    state = {name: b.clone() for name, b in model.named_buffers()}
    with torch.no_grad():
        outputs = _outputs(model, data, output)
        for name, b in model.named_buffers():  # to look is not to train: running statistics stay
            b.copy_(state[name])
    return outputs


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _kappa_apart(model: nn.Module, twin: nn.Module, data: Call, output: Output) -> float:
    """kappa * p^2 does not change; entries that no path uses are zero in both."""
    largest = 0.0
    ours, theirs = (_relative_kappa(m, data, output) for m in (model, twin))
    twins = dict(twin.named_parameters())
    for name, p in model.named_parameters():
        if name not in ours:
            continue
        a, b = ours[name] * p.detach() ** 2, theirs[name] * twins[name].detach() ** 2
        different = torch.where(a == b, 0.0, (a - b).abs() / torch.maximum(a, b))
        largest = max(largest, float(different.max()))
    return largest


def _relative_kappa(model: nn.Module, data: Call, output: Output) -> dict[str, Tensor]:
    measured = Kappa(record(model, data, output), dict(model.named_parameters()))
    second, total = measured.second(), measured.total.mantissa.detach()
    weights = measured.evaluation.weights
    return {
        n: (k + second[n]) / total * torch.exp(-weights[n].log_scale)
        for n, k in measured.first().items()
    }


def _make(optimizer: MakeOptimizer, model: nn.Module) -> Optimizer:
    if not callable(optimizer):
        raise TypeError(
            "optimizer must be a class (PathAdam, torch.optim.SGD) or a function that takes a "
            f"model and returns an optimiser, not {type(optimizer).__name__}"
        )
    takes_the_model = not isinstance(optimizer, type) or issubclass(optimizer, PathOptimizer)
    make: Callable[[Any], Any] = optimizer  # torch.optim's own take parameters
    made = make(model if takes_the_model else model.parameters())
    if not isinstance(made, Optimizer):
        raise TypeError(
            "optimizer must make a torch.optim.Optimizer from a model, it made "
            f"{type(made).__name__}"
        )
    return made


def _name(optimizer: MakeOptimizer, model: nn.Module) -> str:
    return (
        optimizer.__name__
        if isinstance(optimizer, type)
        else type(_make(optimizer, copy.deepcopy(model))).__name__
    )


def _drift(
    make: MakeOptimizer, model: nn.Module, twin: nn.Module, data: Call, targets: Tensor, steps: int,
    output: Output,
) -> list[float]:  # fmt: skip
    pair = [(m, _make(make, m)) for m in (model, twin)]
    found = []
    for step in range(steps):
        for m, optimizer in pair:
            optimizer.zero_grad()
            (_outputs(m, data, output, dice=step) - targets).square().mean().backward()
            optimizer.step()
        found.append(_apart(_run(twin, data, output), _run(model, data, output)))
    return found
