"""Work on whole matrices that are sharded is done once, by their owners."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from pathsgd.distributed.owners import Owned, at_owners, share_out
from pathsgd.distributed.spread import spread_of
from support.processes import in_processes

SHAPES = [(5, 3), (4, 4), (1, 6), (7, 2, 3)]


def squared_at_owners(dim: int, replicas: int) -> tuple[list[torch.Tensor], list[int]]:
    world = dist.get_world_size()
    names = ("replicas", "shards") if replicas > 1 else ("shards",)
    sizes = (replicas, world // replicas) if replicas > 1 else (world,)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    generator = torch.Generator().manual_seed(0)
    wholes = [torch.randn(s, generator=generator) for s in SHAPES]
    placements = [Replicate()] * (replicas > 1) + [Shard(dim)]
    spread = [distribute_tensor(w, mesh, placements) for w in wholes]
    owners = share_out([float(w.numel()) for w in wholes], world)
    matrices = [Owned.of(spread_of(t), t.shape, owner) for t, owner in zip(spread, owners)]
    computed = []

    def compute(index, whole):
        assert torch.equal(whole, wholes[index])
        computed.append(index)
        return whole * whole.sum()

    found = at_owners([t.to_local() for t in spread], matrices, compute)
    joined = [spread_of(t).joined(f.contiguous(), t).full_tensor() for f, t in zip(found, spread)]
    for whole, result in zip(wholes, joined):
        torch.testing.assert_close(result, whole * whole.sum(), rtol=0, atol=0)
    return joined, computed


@pytest.mark.parametrize(
    ("world", "dim", "replicas"), [(1, 0, 1), (2, 0, 1), (2, 1, 1), (4, 0, 1), (4, 0, 2)]
)
def test_each_matrix_is_computed_by_one_process(world, dim, replicas):
    results = in_processes(world, squared_at_owners, dim, replicas)
    done = sorted(index for _, computed in results for index in computed)
    assert done == sorted(list(range(len(SHAPES))) * replicas)
    if world == 2:
        assert all(computed for _, computed in results)


def test_other_ways_to_be_spread_are_left_to_everybody():
    def work():
        mesh = init_device_mesh("cpu", (1, 1))
        t = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
        return Owned.of(spread_of(t), t.shape, 0)

    assert in_processes(1, work) == [None]


def test_the_work_is_shared_out():
    assert sorted(share_out([1, 1, 1, 1], 4)) == [0, 1, 2, 3]
    owners = share_out([8, 1, 1, 1, 1, 4], 2)
    assert owners.count(owners[0]) == 1
