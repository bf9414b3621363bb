"""kappa = 1/2 d^2 gamma^2 / dp^2 = kappa1 + kappa2, for every parameter of a model.

    kappa1_i = dg/dq_i                    one backward pass through the squared network
    kappa2_i = 2 q_i d^2g/dq_i^2          zero unless some path uses the parameter more than once

kappa2 comes in closed form for recurrent matrices (recurrence.py) and by automatic differentiation where a parameter
is shared along a path in any other way: hand-written loops, one Parameter in two modules, tied encoder and decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathsgd import recurrence
from pathsgd.recording import Output, record
from pathsgd.rules.base import Recording, Value
from pathsgd.rules.recurrent import Call
from pathsgd.squared import Evaluation

Terms = Literal["first", "second", "both"]
Convention = Literal["exact", "paper"]

# Rows of the Hessian differentiated together; bounds the memory of the exact route, not its result.
_CHUNK = 64


class Kappa:
    """kappa1 and kappa2 of one evaluation, relative to gamma^2 = mantissa * exp(log_scale) or absolute."""

    def __init__(self, recording: Recording, parameters: Mapping[str, Tensor]) -> None:
        self.recording, self.parameters = recording, parameters
        self.evaluation = Evaluation(recording, parameters)
        self.total = self.evaluation.total
        self._leaves = {n: q.mantissa for n, q in self.evaluation.weights.items()}
        states = [r.states for r in self.evaluation.recurrences]
        wanted = [*self._leaves.values(), *states]
        if self.total.mantissa.requires_grad:
            grads = torch.autograd.grad(self.total.mantissa, wanted, allow_unused=True, materialize_grads=True)
        else:
            grads = tuple(torch.zeros_like(w) for w in wanted)
        self._first = dict(zip(self._leaves, grads))
        self._external = grads[len(self._leaves) :]

    def first(self) -> dict[str, Tensor]:
        """dm/dq of every used parameter, q in its own scale."""
        return self._first

    def second(self, samples: int | None = None, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """2 q d^2m/dq^2 of every used parameter; `samples` asks for the unbiased estimate where autodiff is needed."""
        shared = parameters_shared_along_paths(self.recording)
        result = {name: torch.zeros_like(q) for name, q in self._leaves.items()}
        for name in shared.recurrent:
            result[name] = self._recurrent(name)
        for name in shared.general:
            diagonal = self._hessian_diagonal(name) if samples is None else self._estimate(name, samples, generator)
            result[name] = 2 * self._leaves[name].detach() * diagonal
        return result

    def _recurrent(self, name: str) -> Tensor:
        total = torch.zeros_like(self._leaves[name])
        for passage, external in zip(self.evaluation.recurrences, self._external):
            if passage.parameter != name:
                continue
            states = passage.states.detach()
            delta = recurrence.adjoint_states(passage.A, external)
            before = torch.cat([passage.start[None], states[:-1]])
            for row in range(states.shape[1]):
                total += recurrence.second_order_sum(passage.A, before[:, row], delta[:, row]) * torch.exp(
                    torch.tensor(-2 * passage.sigma, dtype=total.dtype) + self.evaluation.weights[name].log_scale
                )
        return 4 * self._leaves[name].detach() * total * torch.exp(self.evaluation.weights[name].log_scale)

    def _gradient_with_graph(self, name: str) -> tuple[Tensor, Tensor]:
        again = Evaluation(self.recording, self.parameters, unroll=True)
        q = again.weights[name].mantissa
        (gradient,) = torch.autograd.grad(again.total.mantissa, q, create_graph=True)
        # Both passes choose the same scales, but make sure: the diagonal is wanted in this evaluation's scale.
        shift = torch.exp(again.total.log_scale - self.total.log_scale)
        return q, gradient * shift

    def _hessian_diagonal(self, name: str) -> Tensor:
        q, gradient = self._gradient_with_graph(name)
        flat, diagonal = gradient.reshape(-1), torch.zeros(q.numel(), dtype=q.dtype, device=q.device)
        if not flat.requires_grad:
            return diagonal.reshape(q.shape)
        for start in range(0, q.numel(), _CHUNK):
            index = torch.arange(start, min(start + _CHUNK, q.numel()), device=q.device)
            basis = torch.zeros(len(index), q.numel(), dtype=q.dtype, device=q.device)
            basis[torch.arange(len(index)), index] = 1
            (rows,) = torch.autograd.grad(
                flat, q, basis, retain_graph=True, is_grads_batched=True, allow_unused=True, materialize_grads=True
            )
            diagonal[index] = rows.reshape(len(index), -1)[torch.arange(len(index)), index]
        return diagonal.reshape(q.shape)

    def _estimate(self, name: str, samples: int, generator: torch.Generator | None) -> Tensor:
        """E[v * (Hess v)] over random signs v (Bekas, Kokiopoulou & Saad 2007): unbiased for the diagonal."""
        q, gradient = self._gradient_with_graph(name)
        total = torch.zeros_like(q)
        if not gradient.requires_grad:
            return total
        for _ in range(samples):
            signs = torch.randint(0, 2, q.shape, generator=generator, dtype=q.dtype) * 2 - 1
            (product,) = torch.autograd.grad(
                gradient, q, signs, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            total += signs * product
        return total / samples


class Shared:
    """Parameters that some path uses more than once."""

    def __init__(self) -> None:
        self.recurrent: set[str] = set()
        """... only as the recurrent matrix of RNN layers: closed form."""
        self.general: set[str] = set()
        """... in any other way: automatic differentiation."""


def parameters_shared_along_paths(recording: Recording) -> Shared:
    """Follow which parameters lie on paths into each value; a product of two sets that overlap uses one twice."""
    names = {value: name for name, value in recording.parameters.items()}
    upstream: dict[Value, frozenset[str]] = {value: frozenset([name]) for value, name in names.items()}
    shared = Shared()
    for step in recording.steps:
        seen: set[str] = set()
        for group in step.rule.factors(*step.args, **step.kwargs) if step.rule.multiplies else []:
            on_path = frozenset().union(*(upstream.get(v, frozenset()) for v in group))
            shared.general |= seen & on_path
            seen |= on_path
        if step.operation == "rnn_relu":
            for _, _, cell in Call.parse(*step.args).cells():
                if cell[1] in names:
                    shared.recurrent.add(names[cell[1]])
                elif isinstance(cell[1], Value):
                    shared.general |= upstream[cell[1]]  # made from parameters: no closed form in terms of those
        everything = frozenset().union(*(upstream.get(v, frozenset()) for v in step.operands()))
        upstream.update({value: everything for value in step.outputs if value is not None})
    shared.recurrent -= shared.general
    return shared


def _absolute(relative: Tensor, log_factor: Tensor) -> Tensor:
    """values * exp(log_factor) with overflow only where the product overflows, and zeros kept."""
    if log_factor == 0:
        return relative
    return torch.where(relative > 0, (relative.log() + log_factor).exp(), torch.zeros_like(relative))


def kappa(
    model: nn.Module,
    *inputs: Any,
    terms: Terms = "first",
    convention: Convention = "exact",
    relative: bool = False,
    output: Output = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """kappa of every parameter, by name, as float64 tensors of the parameters' shapes.

    terms: "first" kappa1 = dg/dq; "second" kappa2 = 2 q d^2g/dq^2; "both" their sum, half the second derivative of
        gamma^2 in p.
    convention: "exact", or "paper" for kappa2 as the paper's table was printed: each pair of uses counted once and
        without the factor 2, a quarter of the exact value.
    relative: divided by gamma^2; finite for every sequence length.
    samples: estimate kappa2 from that many random signs where it has no closed form, instead of exactly.

    A parameter that no path uses has kappa zero.
    """
    if terms not in ("first", "second", "both"):
        raise ValueError(f"terms must be 'first', 'second' or 'both', got {terms!r}")
    if convention not in ("exact", "paper"):
        raise ValueError(f"convention must be 'exact' or 'paper', got {convention!r}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    recording = record(model, inputs, output)
    parameters = dict(model.named_parameters())
    measured = Kappa(recording, parameters)
    if relative and measured.total.mantissa == 0:
        raise ValueError("gamma^2 is zero: no path reaches the output, so nothing can be relative to it")
    parts = []
    if terms in ("first", "both"):
        parts.append(measured.first())
    if terms in ("second", "both"):
        weight = 0.25 if convention == "paper" else 1.0
        parts.append({name: weight * value for name, value in measured.second(samples, generator).items()})
    result = {name: torch.zeros(p.shape, dtype=torch.float64, device=p.device) for name, p in parameters.items()}
    for name, q in measured.evaluation.weights.items():
        value = sum(part[name] for part in parts)
        assert isinstance(value, Tensor)
        # dm/dq in q's own scale: q_true = q e^s, so d/dq_true = e^-s d/dq.
        if relative:
            result[name] = _absolute(value / measured.total.mantissa.detach(), -q.log_scale)
        else:
            result[name] = _absolute(value, measured.total.log_scale - q.log_scale)
    return result
