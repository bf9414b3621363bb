"""kappa = 1/2 d^2 gamma^2 / dp^2 = kappa1 + kappa2, for every parameter of a model.

    kappa1_i = dg/dq_i                    one backward pass through the squared network
    kappa2_i = 2 q_i d^2g/dq_i^2          zero unless some path uses the parameter more than once

kappa2 comes in closed form for recurrent matrices (arithmetic/second_order.py) and by automatic
differentiation where a parameter is shared along a path in any other way: hand-written loops, one
Parameter in two modules, tied encoder and decoder.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathsgd.arithmetic import recurrence, scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.arithmetic.second_order import second_order_sum
from pathsgd.distributed.sharded import whole_parameters
from pathsgd.kernels.whiten import Outer
from pathsgd.network.framing import Framing
from pathsgd.network.record.record import Output, record
from pathsgd.network.recurrences import rolled
from pathsgd.network.sharing import parameters_shared_along_paths
from pathsgd.network.squared import Evaluation
from pathsgd.network.tape import Recording, Value

Terms = Literal["first", "second", "both"]
Convention = Literal["exact", "paper"]

# Rows of the Hessian differentiated together; bounds the memory of the exact route, not its result.
_CHUNK = 64
# Relative error that the short cut for recurrent matrices may leave (arithmetic/second_order.py).
_SHORT_CUT = 1e-11


class Kappa:
    """kappa1 and kappa2 at the current weights, in the scales of one evaluation.

    With gamma^2 = m exp(S) (`total`) and q = mantissa exp(s) (`evaluation.weights[name]`), the
    stored tensors are derivatives of m in q's mantissa:

        kappa = stored * exp(S - s)        kappa / gamma^2 = stored / m * exp(-s)
    With `relative` all of them are divided by m already, unless it is zero.

    bare: parameters of which only `first_of_bare` is wanted, out of `network.squared.used_once`.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        recording: Recording,
        parameters: Mapping[str, Tensor],
        also: Iterable[Value] = (),
        given: Mapping[Value, Scaled] | None = None,
        wanted: Container[str] | None = None,
        bare: Container[str] = (),
        *,
        relative: bool = False,
        framing: Framing | None = None,
    ) -> None:
        """also: values whose derivatives are wanted. given, wanted: see `Evaluation`."""
        self.recording, self.parameters = recording, parameters
        self.evaluation = Evaluation(
            recording, parameters, keep=also, given=given, wanted=wanted, bare=bare, framing=framing
        )
        self.total = self.evaluation.total
        weights = self.evaluation.weights.items()
        self._leaves = {n: q.mantissa for n, q in weights if q.mantissa.requires_grad}
        kept = self.evaluation.kept
        recurrent = [r.states.mantissa for r in self.evaluation.recurrences]
        unsquared = self.evaluation.unsquared.items()
        self._bare = {n: m for n, m in unsquared if wanted is None or n in wanted}
        anchors = [weight.anchor for weight in self._bare.values()]
        values = [s.mantissa for s in kept.values()]
        sources = [*self._leaves.values(), *recurrent, *values, *anchors]
        total = float(self.total.mantissa.detach()) if relative else 0.0
        self._per = 1 / total if total > 0 else 1.0
        grads = iter(_gradients(self.total.mantissa, sources, self._per))
        self._first = dict(zip(self._leaves, grads))
        self._external = [next(grads) for _ in recurrent]
        self._in_values = {value: s.spread(next(grads)) for value, s in kept.items()}

    def first(self) -> dict[str, Tensor]:
        """dm/dq of every used parameter that has a q."""
        return self._first

    def in_values(self) -> dict[Value, Tensor]:
        """dm/ds of the path sums s of the values in `also`, all in one unit."""
        scales = {value: s.log_scale for value, s in self.evaluation.kept.items()}
        least = min((float(scale.min()) for scale in scales.values()), default=0.0)
        return {
            value: d * (least - scales[value]).exp().to(d.device)
            for value, d in self._in_values.items()
        }

    def first_of_bare(self) -> dict[str, tuple[Tensor | Outer, Tensor | None]]:
        """dm/dq of the bare parameters, and the path mass that enters each row, if known."""
        return {name: (weight.kappa1(), weight.mass()) for name, weight in self._bare.items()}

    @torch.inference_mode(False)
    def second(
        self, samples: int | None = None, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """2 q d^2m/dq^2 of every used parameter. samples: for an estimate without closed form."""
        shared = parameters_shared_along_paths(self.recording)
        result = {name: torch.zeros_like(q) for name, q in self._leaves.items()}
        for name in shared.recurrent:
            result[name] = self._recurrent(name)
        for name in shared.general:
            if samples is None:
                diagonal = self._hessian_diagonal(name)
            else:
                diagonal = self._estimate(name, samples, generator)
            result[name] = 2 * self._per * self._leaves[name].detach() * diagonal
        return result

    def _recurrent(self, name: str) -> Tensor:
        """4 q .* sum_{n>=0} (A^n)^T .* sum_s delta_{s+n+2} h_s^T, summed over passes and rows."""
        A = self._leaves[name].detach()
        total = torch.zeros_like(A)
        for passage, external in zip(self.evaluation.recurrences, self._external):
            if passage.parameter != name:
                continue
            states = passage.states
            delta = recurrence.adjoint_states(A, external, states.ratios)
            before = torch.cat([states.start[None], states.mantissa.detach()[:-1]])
            adjoint = not bool(external[:-1].any())  # outputs at the last step only
            for row in range(before.shape[1]):
                pair = before[:, row], delta[:, row]
                total += second_order_sum(
                    A, *pair, ratios=states.ratios, adjoint=adjoint, tolerance=_SHORT_CUT
                )
        return 4 * A * total

    def _gradient_with_graph(self, name: str) -> tuple[Tensor, Tensor]:
        again = Evaluation(self.recording, self.parameters, unroll=True)
        q = again.weights[name].mantissa
        (gradient,) = torch.autograd.grad(again.total.mantissa, q, create_graph=True)
        # Both evaluations choose their scales alike; make sure, the diagonal is wanted in this
        # one's.
        return q, gradient * torch.exp(again.total.log_scale - self.total.log_scale)

    def _hessian_diagonal(self, name: str) -> Tensor:
        q, gradient = self._gradient_with_graph(name)
        diagonal = torch.zeros(q.numel(), dtype=q.dtype, device=q.device)
        if gradient.requires_grad:
            for index in torch.arange(q.numel(), device=q.device).split(_CHUNK):
                rows = torch.arange(len(index), device=q.device)
                basis = torch.zeros(len(index), q.numel(), dtype=q.dtype, device=q.device)
                basis[rows, index] = 1
                (hessian,) = torch.autograd.grad(
                    gradient.reshape(-1), q, basis,
                    retain_graph=True, is_grads_batched=True, allow_unused=True,
                )  # fmt: skip
                if hessian is not None:
                    diagonal[index] = hessian.reshape(len(index), -1)[rows, index]
        return diagonal.reshape(q.shape)

    def _estimate(self, name: str, samples: int, generator: torch.Generator | None) -> Tensor:
        """E[v * (Hess v)] over random signs v (Bekas, Kokiopoulou & Saad 2007), unbiased."""
        q, gradient = self._gradient_with_graph(name)
        total = torch.zeros_like(q)
        if gradient.requires_grad:
            for _ in range(samples):
                bits = torch.randint(0, 2, q.shape, generator=generator, dtype=q.dtype)
                signs = bits.to(q.device) * 2 - 1
                (product,) = torch.autograd.grad(
                    gradient, q, signs, retain_graph=True, materialize_grads=True
                )
                total += signs * product
        return total / samples


def _gradients(total: Tensor, wanted: list[Tensor], per: float) -> tuple[Tensor, ...]:
    """The derivatives of `total`, times `per`."""
    if not total.requires_grad:  # no parameter reaches the output
        return tuple(torch.zeros_like(w) for w in wanted)
    first = None if per == 1 else torch.full_like(total, per)
    return torch.autograd.grad(total, wanted, first, allow_unused=True, materialize_grads=True)


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

    terms: "first" kappa1 = dg/dq; "second" kappa2 = 2 q d^2g/dq^2; "both" their sum, half the
        second derivative of gamma^2 in p.
    convention: "exact", or "paper" for kappa2 as the paper's table was printed: each pair of uses
        counted once and without the factor 2, a quarter of the exact value.
    relative: divided by gamma^2; finite for every sequence length.
    samples: estimate kappa2 from that many random signs where it has no closed form, instead of
        exactly. Unbiased, and drawn from `generator`.

    A parameter that no path uses has kappa zero.
    """
    if terms not in ("first", "second", "both"):
        raise ValueError(f"terms must be 'first', 'second' or 'both', got {terms!r}")
    if convention not in ("exact", "paper"):
        raise ValueError(f"convention must be 'exact' or 'paper', got {convention!r}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    recording = rolled(record(model, inputs, output))
    parameters = whole_parameters(model)
    measured = Kappa(recording, parameters)
    if relative and measured.total.mantissa == 0:
        raise ValueError(
            "gamma^2 is zero: no path reaches the output, so nothing can be relative to it"
        )
    parts = []
    if terms != "second":
        parts.append(measured.first())
    if terms != "first":
        second = measured.second(samples, generator)
        factor = 1 if convention == "exact" else 0.25
        parts.append({name: factor * value for name, value in second.items()})
    result = _zeros(parameters)
    total = measured.total
    for name, q in measured.evaluation.weights.items():
        value = torch.stack([part[name] for part in parts]).sum(0)
        if relative:
            result[name] = _signed(value / total.mantissa.detach(), -q.log_scale)
        else:
            result[name] = _signed(value, total.log_scale - q.log_scale)
    return result


def _zeros(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for name, p in parameters.items()
    }


def _signed(values: Tensor, log_factor: Tensor) -> Tensor:
    """values * exp(log_factor); an estimate of kappa2 may be negative."""
    return values.sign() * scaled.to_float(values.abs(), log_factor)


# ---- shares of paths -----------------------------------------------------------------------------


def path_share(model: nn.Module, *inputs: Any, output: Output = None) -> dict[str, Tensor]:
    """Each weight's share of gamma^2, q kappa1 / gamma^2 = 1/2 p d log gamma^2 / dp, by name.

    inputs: example inputs of the model; only shapes and dtypes matter.
    output: which of the model's results to measure, an index, a key or a function; None takes the
        first tensor.

    The shares of a layer that every path crosses once add up to one, with the bias that starts
    paths there. They are importance scores for `torch.nn.utils.prune`:

    >>> import torch
    >>> from torch.nn.utils import prune
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> share = path_share(net, torch.ones(1, 4))
    >>> weights = {(net[0], "weight"): share["0.weight"], (net[2], "weight"): share["2.weight"]}
    >>> prune.global_unstructured(
    ...     list(weights), prune.L1Unstructured, importance_scores=weights, amount=0.5
    ... )
    >>> int(sum((module.weight == 0).sum() for module, _ in weights))
    20
    """
    parameters = whole_parameters(model)
    measured = Kappa(rolled(record(model, inputs, output)), parameters)
    total = measured.total.mantissa.detach()
    if total == 0:
        raise ValueError(
            "gamma^2 is zero: no path reaches the output, so no weight has a share of it"
        )
    result = _zeros(parameters)
    for name, q in measured.evaluation.weights.items():
        # The scales of q and of kappa cancel.
        result[name] = q.mantissa.detach() * measured.first()[name] / total
    return result
