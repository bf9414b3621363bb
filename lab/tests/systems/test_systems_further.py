"""Nets beyond the paper's tables: dense, autoencoder, convolutional, continuous time."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import pathsgd
from pathsgd_lab.systems import SYSTEMS, AutoencoderSystem, CnnSystem, CtrnnSystem, MlpSystem
from pathsgd_lab.tasks import DecisionTask, MnistAutoencoderTask, SequentialMnistTask, Task
from pathsgd_lab.tasks.decision import ONSET

NETS: dict[str, Task] = {
    "mlp": SequentialMnistTask(subsample=7),
    "autoencoder": MnistAutoencoderTask(subsample=7),
    "cnn": SequentialMnistTask(subsample=4),
    "ctrnn": DecisionTask(length=8),
}


@pytest.mark.parametrize("system", NETS)
def test_gamma_is_the_output_on_ones_with_squared_parameters(system: str) -> None:
    """The squared net on ones; a pool passes every entry of its window, so it is a sum here."""
    task = NETS[system]
    net = SYSTEMS[system](hidden=8).build(task, seed=0).double()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "bias" in name:
                parameter.uniform_(-0.1, 0.1)
    squared = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in squared.parameters():
            parameter.square_()
        if system == "ctrnn":
            (
                squared.input.weight.mul_(0.2),
                squared.recurrent.weight.mul_(0.2),
                squared.recurrent.bias.mul_(0.2),
            )
            h = torch.zeros(8, dtype=torch.float64)
            for _ in range(
                task.length
            ):  # (1 - a)^2 h + a^2 (...): the mixture's weights are squared, too
                drive = (
                    squared.input.weight.sum(1)
                    + squared.recurrent.weight @ h
                    + squared.recurrent.bias
                )
                h = 0.8**2 * h + 0.2 * drive
            outputs = squared.readout(h)
        else:
            for index, module in enumerate(squared.body):
                if isinstance(module, torch.nn.MaxPool2d):
                    squared.body[index] = torch.nn.LPPool2d(1, 2)
            outputs, _ = squared(torch.ones(task.length, 1, task.input_size, dtype=torch.float64))
    found = pathsgd.gamma_sq(net, task.example_inputs(1).double(), output=0)
    assert found.item() == pytest.approx(outputs.sum().item(), rel=1e-9)


def test_a_dense_net_reads_the_sequence_as_one_vector() -> None:
    net = MlpSystem(hidden=5, layers=2).build(SequentialMnistTask(subsample=7), seed=0)
    x = torch.rand(16, 3, 1)
    hidden = torch.relu(net.body[1](x.squeeze(-1).t()))
    torch.testing.assert_close(net(x)[0], net.readout(torch.relu(net.body[3](hidden))))
    assert net(x)[1] == () and [p.shape for p in net.body.parameters()][::2] == [(5, 16), (5, 5)]


def test_widths_of_the_autoencoder_and_shape_of_2c2d() -> None:
    body = AutoencoderSystem().build(MnistAutoencoderTask(), 0).body
    widths = [m.out_features for m in body.modules()
              if isinstance(m, torch.nn.Linear)]  # fmt: skip
    assert widths == [1000, 500, 250, 30, 250, 500, 1000]
    shapes = [
        tuple(p.shape)
        for p in CnnSystem().build(SequentialMnistTask(), 0).parameters()
        if p.ndim > 1
    ]
    assert shapes == [(10, 1024), (32, 1, 5, 5), (64, 32, 5, 5), (1024, 3136)]


def test_the_rate_network_leaks() -> None:
    net = CtrnnSystem(hidden=6, leak=0.25).build(DecisionTask(length=8), seed=0)
    x = torch.rand(8, 2, 5)
    h = torch.zeros(2, 6)
    for step in x:
        h = 0.75 * h + 0.25 * torch.relu(net.input(step) + net.recurrent(h))
    torch.testing.assert_close(net(x)[0], net.readout(h))


@pytest.mark.parametrize(("system", "setting"), zip(NETS, ("layers", "code", "channels", "leak")))
def test_sizes_must_be_positive(system: str, setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be"):
        SYSTEMS[system](**{setting: 0})


def test_the_autoencoder_is_asked_for_the_pixels_it_reads(tiny_data: Path) -> None:
    task = MnistAutoencoderTask(subsample=4, valid_size=10)
    batch = task.prepare(tiny_data).stream(7, seed=0).next()
    assert (
        torch.equal(batch.targets, batch.inputs.squeeze(-1).t())
        and task.output_size == 49
        and task.solved is None
    )
    assert (
        MnistAutoencoderTask(subsample=2).chance == 0.05157
        and task.chance < MnistAutoencoderTask().chance
    )


def test_the_sign_of_the_signal_in_context_is_the_class() -> None:
    task = DecisionTask(length=12, delay=3, noise=0.0)
    inputs, targets, _ = task.trials(200, torch.Generator().manual_seed(0))
    cue = inputs[0, :, 3:].argmax(-1)
    shown = inputs[ONSET:-3, :, 1:3]
    assert not inputs[:ONSET, :, 1:3].any() and not inputs[-3:, :, 1:3].any()
    assert torch.equal((shown[0].gather(1, cue.unsqueeze(1))[:, 0] > 0).long(), targets)
    assert (inputs[:-1, :, 0] == 1).all() and not inputs[-1, :, 0].any()
    for wrong in ({"delay": 0}, {"length": 6}, {"noise": -1.0}):
        with pytest.raises(ValueError):
            DecisionTask(**wrong)
