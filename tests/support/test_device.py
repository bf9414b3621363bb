"""The test device does what a device does, and refuses what a device refuses."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.device import DEVICE, NAME, DeviceTensor, counting, to_cpu


def elsewhere(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE)


OPERATIONS = {
    "matmul": (lambda a, b: a @ b.t(), (3, 4), (5, 4)),
    "broadcast": (lambda a, b: a * b + 1, (3, 4), (4,)),
    "reductions": (lambda a: torch.stack([a.sum(), a.amax(), a.prod(), a.norm()]), (3, 4)),
    "views": (lambda a: a.t()[1:].unsqueeze(0).expand(2, -1, -1).flatten(1), (3, 4)),
    "split": (lambda a: sum(part.cumsum(0) * i for i, part in enumerate(a.split(1, 1))), (3, 4)),
    "cat, flip, where": (
        lambda a, b: torch.where(a > 0, torch.cat([b, b.flip(0)]), a),
        (4, 2),
        (2, 2),
    ),
    "conv2d": (lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 2), (2, 3, 6, 6), (4, 3, 3, 3)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (8, 3)),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ki", a, b), (3, 4), (5, 4)),
    "linalg": (lambda a: torch.linalg.svdvals(a), (3, 4)),
    "in place through a view": (lambda a: _write_into_columns(a), (3, 4)),
    "softmax and loss": (lambda a: F.cross_entropy(a, a.detach().argmax(1)), (3, 4)),
    "foreach": (
        lambda a, b: torch.stack(torch._foreach_norm(torch._foreach_mul([a, b], [b, a]))),
        (3, 4),
        (3, 4),
    ),
}


def _write_into_columns(a):
    target = torch.zeros_like(a)
    target[:, 1] = a[:, 0] * 2
    target.t()[2].add_(a[:, 3])
    return target


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_gradients_and_strides_are_those_of_the_cpu(name):
    function, *shapes = OPERATIONS[name]
    torch.manual_seed(0)
    here = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    there = [x.detach().to(NAME).requires_grad_() for x in here]
    wanted, got = function(*here), function(*there)
    assert got.device == DEVICE and type(got) is DeviceTensor
    assert got.stride() == wanted.stride() and torch.equal(to_cpu(got), wanted)
    wanted.square().sum().backward()
    got.square().sum().backward()
    for x, y in zip(here, there):
        assert y.grad.device == DEVICE
        torch.testing.assert_close(to_cpu(y.grad), x.grad)


@pytest.mark.parametrize(
    "layer", [nn.RNN(3, 5, nonlinearity="relu"), nn.RNN(3, 5, 2, bidirectional=True)]
)
def test_recurrent_layers(layer):
    x = torch.randn(6, 2, 3)
    there = copy.deepcopy(layer).to(DEVICE)
    torch.testing.assert_close(to_cpu(there(x.to(DEVICE))[0]), layer(x)[0])


def test_a_view_and_its_base_share_memory():
    x = torch.zeros(3, 4, device=DEVICE)
    view = x.t()[1]
    view.fill_(7.0)
    assert view._is_view() and to_cpu(x)[:, 1].tolist() == [7.0] * 3 and view.stride() == (4,)
    x.mul_(2)
    assert to_cpu(view).tolist() == [14.0] * 3


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
def test_out_writes_into_the_tensor_given():
    a, out = elsewhere(3, 4), torch.zeros(3, 3, dtype=torch.float64, device=DEVICE)
    assert torch.mm(a, a.t(), out=out) is out
    torch.testing.assert_close(to_cpu(out), to_cpu(a) @ to_cpu(a).t())
    with pytest.raises(RuntimeError, match="out= the right shape"):
        torch.mm(a, a.t(), out=torch.zeros(2, dtype=torch.float64, device=DEVICE))


def test_in_place_operations_return_their_operand():
    a = elsewhere(3)
    assert a.add_(1) is a and a.t_() is a


def test_factories():
    with counting() as counts:
        made = [
            torch.ones(2, device=NAME),
            torch.full((2,), 3.0, device=DEVICE),
            torch.arange(4, device=DEVICE),
        ]
        made += [made[0].new_zeros(3), torch.rand_like(made[0]), torch.eye(2, device=NAME)]
    assert all(type(t) is DeviceTensor and t.device == DEVICE for t in made)
    assert (counts.launches, counts.syncs) == (6, 0)
    assert to_cpu(torch.tensor([[1, 2]], device=NAME)).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: b.scatter_add_(0, torch.zeros(3, dtype=torch.int64), a),
        lambda a, b: torch.mm(a[None], b[:, None]),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.zeros(4)[a.long()],
        lambda a, b: torch._foreach_add_([a], [b]),
        lambda a, b: torch.dot(a, b),
        lambda a, b: torch.stack([a.sum(), torch.tensor(1.0)]),
    ],
)
def test_two_devices_in_one_operation_are_refused(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix(torch.ones(3, device=DEVICE), torch.ones(3))


def test_numbers_and_cpu_indices_may_meet_the_device():
    a = torch.ones(3, device=DEVICE)
    assert to_cpu(a * torch.tensor(2.0) + 1).tolist() == [3.0] * 3
    with counting() as counts:
        assert to_cpu(a[torch.tensor([0, 2])]).tolist() == [1.0, 1.0]
    assert counts.syncs == 1  # the index was copied there


@pytest.mark.parametrize("read", [torch.Tensor.tolist, torch.Tensor.data_ptr, torch.Tensor.numpy])
def test_reading_memory_is_refused(read):
    a = torch.ones(3, device=DEVICE)
    with pytest.raises((RuntimeError, TypeError)):
        getattr(a, read.__name__)()


@pytest.mark.parametrize(
    "wait",
    [
        lambda a: a.sum().item(),
        lambda a: float(a[0]),
        lambda a: bool(a.any()),
        lambda a: a.cpu(),
        lambda a: a.to("cpu", torch.float64),
        lambda a: torch.empty(3).copy_(a),
        lambda a: a.copy_(torch.zeros(3)),
        lambda a: torch.tensor([1.0], device=DEVICE),
        lambda a: a.nonzero(),
        lambda a: a[a > 0],
        lambda a: torch.equal(a, a),
        lambda a: 1 if a[0] > 0 else 2,
    ],
)
def test_each_wait_of_the_host_is_counted(wait):
    a = torch.ones(3, device=DEVICE)
    with counting() as counts:
        wait(a)
    assert counts.syncs == 1, counts


@pytest.mark.parametrize(
    "work",
    [
        lambda a: a.add_(1).mul(2).sum(),
        lambda a: torch.where(a > 0, a, 0.0).clamp(min=1e-8),
        lambda a: a.copy_(torch.zeros(3), non_blocking=True),
        lambda a: a.double().square().view(1, 3),
        lambda a: torch._foreach_norm([a, a]),
    ],
)
def test_work_on_the_device_is_not_waited_for(work):
    a = torch.ones(3, device=DEVICE)
    with counting() as counts:
        work(a)
    assert counts.syncs == 0 and 0 < counts.launches <= 4, counts


def test_views_and_allocations_launch_nothing():
    a = torch.ones(3, 4, device=DEVICE)
    with counting() as counts:
        a.t()[1].reshape(1, 3).expand(2, 3).detach()
        torch.empty_like(a)
    assert (counts.launches, counts.syncs) == (0, 0)


def test_a_moved_model_keeps_its_parameters_and_ties():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    held = model[0].weight
    model.to(DEVICE)
    assert (
        model[1].weight is model[0].weight is held
        and isinstance(held, nn.Parameter)
        and held.device == DEVICE
    )
    assert len(list(model.parameters())) == 1


def test_a_tensor_without_data_leaves_the_device():
    with counting() as counts:
        assert elsewhere(2, 3).to("meta").is_meta
    assert counts.syncs == 1  # that of `elsewhere`, which copied it there


def test_copies_and_files():
    model = nn.Linear(2, 2).to(DEVICE)
    model(torch.ones(1, 2, device=DEVICE)).sum().backward()
    copied = copy.deepcopy(model)
    assert isinstance(copied.weight, nn.Parameter) and copied.weight is not model.weight
    assert torch.equal(to_cpu(copied.weight.grad), to_cpu(model.weight.grad))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["weight"].device == DEVICE
    assert torch.equal(to_cpu(loaded["weight"]), to_cpu(model.weight))


def test_torch_optimizers_take_their_foreach_path():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for _ in range(2):
        model(torch.ones(3, 4, device=DEVICE)).sum().backward()
        with counting() as counts:
            optimizer.step()
    assert counts.syncs == 0 and counts.launches < 10, counts
