"""The squared network on small images against the whole ones, which other tests check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathsgd.arithmetic.scaled import Scaled, no_scale
from pathsgd.kernels.whiten import dense
from pathsgd.metric.geometry import Geometry
from pathsgd.network.framing import Frame, Framed, Framing, Window, constant
from pathsgd.network.record.record import record
from pathsgd.paths.kappa import Kappa

RIGHT = {"rtol": 1e-11, "atol": 0.0}


class Both(nn.Module):
    """What a layer makes of an image, beside the image or added to it."""

    def __init__(self, layer: nn.Module, *, beside: bool) -> None:
        super().__init__()
        self.layer, self.beside = layer, beside

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return torch.cat([x, y], 1) if self.beside else x + 0.5 * y


def convolution(
    draw: st.DrawFn, spatial: int, ins: int, outs: int, *, keeps_size: bool = False
) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d)[spatial - 1]
    groups = draw(st.sampled_from([1, 2])) if ins % 2 == outs % 2 == 0 else 1
    options: dict[str, Any] = {"bias": draw(st.booleans()), "groups": groups}
    if keeps_size:
        return kind(
            ins,
            outs,
            draw(st.integers(1, 4)),
            padding="same",
            dilation=draw(st.integers(1, 2)),
            **options,
        )
    size, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return kind(
        ins, outs, size, stride, draw(st.integers(0, 3)), draw(st.integers(1, 2)), **options
    )


@st.composite
def layers(draw: st.DrawFn, spatial: int) -> nn.Module:
    """A few layers of two channels at the ends of each."""
    made = [convolution(draw, spatial, 2, 2)]
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(
            st.sampled_from(
                ["conv", "conv", "pool", "average", "norm", "unit", "residual", "cat", "larger"]
            )
        )
        if kind == "conv":
            made.append(convolution(draw, spatial, 2, 2))
        elif kind in ("pool", "average"):
            size = draw(st.integers(1, 3))
            options: dict[str, Any] = {
                "stride": draw(st.sampled_from([None, 1, 2])),
                "padding": size // 2,
            }
            options["ceil_mode"] = draw(st.booleans())
            names = {"pool": ("MaxPool1d", "MaxPool2d"), "average": ("AvgPool1d", "AvgPool2d")}[
                kind
            ]
            options |= {} if kind == "pool" else {"count_include_pad": draw(st.booleans())}
            made.append(getattr(nn, names[spatial - 1])(size, **options))
        elif kind == "norm":
            made.append((nn.BatchNorm1d, nn.BatchNorm2d)[spatial - 1](2))
        elif kind == "unit":
            made.append(
                draw(st.sampled_from([nn.ReLU(), nn.LeakyReLU(2.0), nn.PReLU(2), nn.Dropout(0.5)]))
            )
        elif kind == "residual":
            made.append(Both(convolution(draw, spatial, 2, 2, keeps_size=True), beside=False))
        elif kind == "cat":
            made += [Both(nn.ReLU(), beside=True), convolution(draw, spatial, 4, 2)]
        else:
            made.append(
                nn.Upsample(scale_factor=draw(st.sampled_from([1, 2, 3, 1.5])), mode="nearest")
            )
    return nn.Sequential(*made)


def both(model: nn.Module, x: Tensor) -> tuple[Kappa, Kappa, Framing]:
    """On whole images and on small ones, with derivatives in all values."""
    for p in model.parameters():
        p.data.uniform_(0.2, 1.5)
    recording = record(model, (x,))
    framing = Framing(recording.steps, recording.inputs)
    values = [v for step in recording.steps for v in step.outputs if v is not None]
    parameters = dict(model.named_parameters())
    return (
        Kappa(recording, parameters, values),
        Kappa(recording, parameters, values, framing=framing),
        framing,
    )


@settings(max_examples=150)
@given(
    data=st.data(), spatial=st.integers(1, 2), training=st.booleans(), seed=st.integers(0, 10**6)
)
def test_small_images_have_the_sums_and_derivatives_of_large_ones(
    data: st.DataObject, spatial: int, training: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = data.draw(layers(spatial)).train(training)
    x = torch.rand(1, 2, *[data.draw(st.integers(8, 30)) for _ in range(spatial)])
    try:
        model(torch.cat([x, x]))
    except RuntimeError:  # nothing is left of the image
        assume(False)
    large, small, _ = both(model, x)
    torch.testing.assert_close(small.total.log(), large.total.log(), **RIGHT)
    for name, kappa in large.first().items():
        torch.testing.assert_close(small.first()[name], kappa, **RIGHT)
    derivatives = small.in_values()
    for value, derivative in large.in_values().items():
        found = derivatives[value]
        assert found.shape == derivative.shape
        dims = list(range(2, found.dim()))
        torch.testing.assert_close(found.sum(dims), derivative.sum(dims), **RIGHT)


def test_a_net_of_convolutions_works_on_small_images() -> None:
    sizes: list[torch.Size] = []
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2)
    )
    recording = record(net, (torch.rand(1, 1, 64, 64),))
    framing = Framing(recording.steps, recording.inputs)
    original = Framed.cropped

    def cropped(self: Framed, wanted: Any) -> Scaled:
        result = original(self, wanted)
        sizes.append(result.shape)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Framed, "cropped", cropped)
        Kappa(recording, dict(net.named_parameters()), framing=framing)
    assert [size[-2:] for size in sizes] == [(3, 3), (3, 3), (5, 5), (6, 6)]


def test_a_net_without_images_is_left_alone() -> None:
    recording = record(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (torch.rand(1, 3),)
    )
    assert not any(
        s.operation == "linear"
        for s in recording.steps
        if id(s) in Framing(recording.steps, ())._crops
    )
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU())  # all border
    recording = record(net, (torch.rand(1, 1, 2, 2),))
    assert not Framing(recording.steps, recording.inputs)


@settings(max_examples=300)
@given(
    frame=st.builds(Frame, st.integers(0, 6), st.integers(1, 12), st.integers(0, 6)),
    window=st.builds(Window, st.integers(1, 5), st.integers(1, 4), st.integers(0, 4)),
)
def test_what_windows_see(frame: Frame, window: Window) -> None:
    """By a look at every window: it sees the same as the first one inside, or it is border."""
    size = (frame.size + 2 * window.padding - window.reach) // window.stride + 1
    assume(size > 0)
    inside = range(frame.before, frame.before + frame.run)

    def is_inside(t: int) -> bool:
        first = t * window.stride - window.padding
        return first in inside and first + window.reach - 1 in inside

    alike = [t for t in range(size) if is_inside(t)]
    found = window.seen_through(frame, size)
    if not alike:
        assert found is None
        return
    assert found is not None
    result, run = found
    assert (result.before, result.run, result.size) == (alike[0], len(alike), size)
    assert run == frame.run - (len(alike) - 1) * window.stride >= window.reach


def test_means_and_whole_images() -> None:
    torch.manual_seed(0)
    frames = (Frame(1, 4, 2), Frame(0, 5, 0))
    small = Framed(torch.rand(1, 3, 4, 1, dtype=torch.float64), no_scale(), frames)
    whole = small.whole().mantissa
    assert whole.shape == (1, 3, 7, 5)
    torch.testing.assert_close(small.mean([0, 2, 3]), whole.mean([0, 2, 3], keepdim=True))
    for p in range(7):
        at = p if p < 1 else max(1, p - 3)
        assert torch.equal(whole[:, :, p], small.mantissa[:, :, at].expand(1, 3, 5))
    ones = constant(Scaled(torch.ones(()).double().expand(2, 3), no_scale()))
    assert ones.mantissa.shape == (1, 1) and not any(ones.whole().mantissa.stride())
    shared = small.spread(small.mantissa)
    torch.testing.assert_close(shared.sum(), small.mantissa.sum())


def test_a_step_measures_on_small_images_what_is_measured_exactly() -> None:
    torch.manual_seed(0)
    block = Both(
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()), beside=False
    )
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), block, nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, 2, 1),
        nn.Flatten(), nn.Linear(6 * 36, 2),
    )  # fmt: skip
    x = torch.rand(2, 3, 24, 24)
    geometry = Geometry(net)
    exact, short = geometry.measure((x,)), geometry.measure((x,), exact=False)
    assert geometry.structure((x,)).framing
    assert short.log_gamma_sq == pytest.approx(exact.log_gamma_sq, rel=1e-6)
    for name, kappa in exact.kappa.items():
        torch.testing.assert_close(
            dense(short.kappa[name]).double().expand(kappa.shape), kappa, rtol=2e-5, atol=0
        )
    for name, ahead in exact.ahead.items():
        torch.testing.assert_close(short.ahead[name], ahead, rtol=2e-5, atol=0)
