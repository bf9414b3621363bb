import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from pathsgd import PathAdam
from task import Net, sequences
from with_accelerate import main


@pytest.fixture(autouse=True)
def _a_state_of_its_own():
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_example_learns_with_accumulated_gradients(counts):
    losses = main()
    assert sum(losses[-8:]) / 8 < 0.02 < losses[0]
    assert counts == {"measured": 64, "steps": 64}  # 128 batches


def test_bfloat16_autocast():
    losses = main(mixed_precision="bf16")
    assert sum(losses[-8:]) / 8 < 0.02 < losses[0]


def _prepared():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Net()
    loader = DataLoader(sequences(128), batch_size=32)
    return accelerator, *accelerator.prepare(
        model, PathAdam(model, lr=1e-2, refresh_every=3), loader
    )


def _train(accelerator, model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(mse_loss(model(x), y))
        optimizer.step()


def test_a_saved_state_continues_the_run(tmp_path):
    accelerator, model, optimizer, loader = _prepared()
    _train(accelerator, model, optimizer, loader)
    accelerator.save_state(tmp_path)
    _train(accelerator, model, optimizer, loader)
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, again, optimizer, loader = _prepared()
    accelerator.load_state(tmp_path)
    _train(accelerator, again, optimizer, loader)
    for p, q in zip(model.parameters(), again.parameters()):
        assert torch.equal(p, q)
