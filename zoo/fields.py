"""Graphs, reinforcement learning, tables: torch_geometric, stable-baselines3, rtdl."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import CLASSES, Entry, Task


def _graph(name: str) -> Task:
    from torch_geometric.nn import models

    generator = torch.Generator().manual_seed(1)
    nodes, links = 60, 200
    x = torch.randn(nodes, 8, generator=generator)
    edges = torch.randint(0, nodes, (2, links), generator=generator)
    y = torch.randint(0, CLASSES, (nodes,), generator=generator)
    model = getattr(models, name)(8, 32, num_layers=2, out_channels=CLASSES)
    loss = lambda m, x, edges, y: F.cross_entropy(m(x, edges), y)  # noqa: E731
    return Task(model, [(x, edges, y)], loss, inputs=lambda x, edges, y: (x, edges))


def _policy(name: str) -> Task:
    import gymnasium
    from stable_baselines3 import DQN, PPO

    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(64, 3, generator=generator)
    if name == "PPO":
        policy = PPO(
            "MlpPolicy", "Pendulum-v1", policy_kwargs={"activation_fn": nn.ReLU}, device="cpu"
        ).policy
        actions = torch.rand(64, 1, generator=generator) * 2 - 1

        def loss(m: nn.Module, x: Tensor, a: Tensor) -> Tensor:
            values, log_prob, entropy = m.evaluate_actions(x, a)  # type: ignore[operator]
            return -log_prob.mean() + (values - a).square().mean() - 0.01 * entropy.mean()

        return Task(
            policy, [(observations, actions)], loss, options={"output": ["action_net", "value_net"]}
        )
    environment = gymnasium.make("CartPole-v1")
    network = DQN("MlpPolicy", environment, device="cpu").policy.q_net
    states = torch.randn(64, 4, generator=generator)
    targets = torch.randn(64, 2, generator=generator)
    return Task(network, [(states, targets)], lambda m, x, y: (m(x) - y).square().mean())


def _table(name: str) -> Task:
    import rtdl_revisiting_models as rtdl

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(128, 12, generator=generator)
    y = x[:, :1].relu() - x[:, 1:2].abs()
    if name == "MLP":
        model = rtdl.MLP(d_in=12, d_out=1, n_blocks=2, d_block=64, dropout=0.1)
    else:
        model = rtdl.ResNet(
            d_in=12,
            d_out=1,
            n_blocks=2,
            d_block=64,
            d_hidden=None,
            d_hidden_multiplier=2.0,
            dropout1=0.15,
            dropout2=0.0,
        )
    return Task(model, [(x, y)], lambda m, x, y: (m(x) - y).square().mean())


def entries() -> Iterator[Entry]:
    for name in ("GCN", "GIN", "GraphSAGE"):
        yield Entry("graphs, torch_geometric", name, partial(_graph, name))
    for name in ("PPO", "DQN"):
        yield Entry(
            "reinforcement learning, stable-baselines3", f"{name} policy", partial(_policy, name)
        )
    for name in ("MLP", "ResNet"):
        yield Entry("tables, rtdl", name, partial(_table, name))
