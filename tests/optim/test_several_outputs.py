"""Models with several output tensors: rescaling fixes all; the metric measures those chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd


class TwoHeads(nn.Module):
    def __init__(self, as_dict: bool = False) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(6, 1)
        self.features, self.as_dict = nn.Linear(6, 4), as_dict

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.trunk(x))
        f = torch.relu(self.features(h))
        results = {"policy": self.policy(h), "value": self.value(h), "features": f}
        return results if self.as_dict else tuple(results.values())


@pytest.mark.parametrize("change", ["random_rescaling", "balance", "rescale_nodes"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_a_rescaling_changes_no_output(change: str, as_dict: bool) -> None:
    model, x = TwoHeads(as_dict).double(), torch.rand(4, 3, dtype=torch.float64)
    before = model(x)
    options = {"alpha": 3.0} if change == "rescale_nodes" else {}
    getattr(pathsgd, change)(model, x, **options)
    after = model(x)
    for key in before if as_dict else range(3):
        torch.testing.assert_close(after[key], before[key])
    assert pathsgd.node_spaces(model, x).count == 6  # the trunk; what is returned is fixed


def test_all_outputs_can_be_measured() -> None:
    model, x = TwoHeads().double(), torch.rand(4, 3, dtype=torch.float64)
    parts = [pathsgd.gamma_sq(model, x, output=k) for k in range(3)]
    torch.testing.assert_close(pathsgd.gamma_sq(model, x, output="all"), torch.stack(parts).sum())
    named = [pathsgd.gamma_sq(TwoHeadsLike(model), x, output=key) for key in ("policy", "value")]
    torch.testing.assert_close(torch.stack(named), torch.stack(parts[:2]))


def TwoHeadsLike(model: TwoHeads) -> TwoHeads:
    model.as_dict = True
    return model


def test_output_names_a_submodule() -> None:
    """Logits behind a softmax, or several heads of an agent."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(-1)).double()
    x = torch.rand(4, 3, dtype=torch.float64)
    torch.testing.assert_close(
        pathsgd.gamma_sq(model, x, output="2"), pathsgd.gamma_sq(model[:3], x)
    )
    assert pathsgd.explain(model, x, output="2").supported
    heads = TwoHeads().double()
    both = pathsgd.gamma_sq(heads, x, output=["policy", "value"])
    torch.testing.assert_close(
        both, pathsgd.gamma_sq(heads, x, output=0) + pathsgd.gamma_sq(heads, x, output=1)
    )
    with pytest.raises(ValueError, match="no-such"):
        pathsgd.gamma_sq(heads, x, output="no-such")


@pytest.mark.parametrize("output", [None, "all", 1, ["policy", "value"]])
def test_check_invariance_passes_output_on(output: Any) -> None:
    model, x = TwoHeads(), torch.rand(4, 3)
    report = pathsgd.check_invariance(
        model,
        x,
        optimizer=lambda m: pathsgd.PathAdam(m, lr=1e-2, output=output),
        steps=3,
        output=output,
    )
    assert report.ok, str(report)


def test_what_does_not_touch_the_measured_output_is_not_refused() -> None:
    """transformers' models compute their loss inside forward."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(x)
            loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
            found = {"logits": logits, "probabilities": logits.softmax(-1)}
            return found if loss is None else {"loss": loss, **found}

    model, x, labels = WithLoss(), torch.rand(5, 3), torch.randint(0, 2, (5,))
    assert pathsgd.explain(model, x, labels, output="logits").supported
    torch.testing.assert_close(
        pathsgd.gamma_sq(model, x, labels, output="logits"), pathsgd.gamma_sq(model.net, x)
    )
    optimizer = pathsgd.PathAdam(model, lr=1e-2, output="logits")
    before = model.net[0].weight.detach().clone()
    model(x, labels=labels)["loss"].backward()
    optimizer.step()
    assert bool((model.net[0].weight != before).any())
    with pytest.raises(pathsgd.UnsupportedOperation, match="cross_entropy"):
        pathsgd.gamma_sq(model, x, labels)
