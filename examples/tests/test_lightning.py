import lightning
import pytest
import torch
from torch.utils.data import DataLoader

from task import sequences
from with_lightning import Regression, main


def trained(epochs, folder, *, manual=False, resume=None, **options):
    lightning.seed_everything(0, verbose=False)
    module = Regression(manual)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(sequences(128), batch_size=32), ckpt_path=resume)
    return module, trainer


@pytest.mark.parametrize("manual", [False, True])
def test_the_example_learns(manual, counts):
    trainer = main(manual)
    assert float(trainer.callback_metrics["loss"]) < 0.02
    assert counts == {"measured": 64, "steps": 64}


@pytest.mark.parametrize("manual", [False, True])
def test_a_resumed_run_is_the_same_run(manual, tmp_path):
    whole, _ = trained(4, tmp_path / "whole", manual=manual)
    _, first = trained(2, tmp_path / "first", manual=manual)
    saved = first.checkpoint_callback.best_model_path
    assert saved
    resumed, _ = trained(4, tmp_path / "second", manual=manual, resume=saved)
    for p, q in zip(whole.parameters(), resumed.parameters()):
        assert torch.equal(p, q)


def test_gradients_are_accumulated_for_one_measurement(tmp_path, counts):
    trained(2, tmp_path, accumulate_grad_batches=2)
    assert counts == {"measured": 4, "steps": 4}


def test_lightning_clips_before_the_step(tmp_path):
    norms = []

    class Watch(lightning.Callback):
        def on_before_zero_grad(self, trainer, module, optimizer):
            grads = [p.grad.norm() for p in module.parameters() if p.grad is not None]
            norms.extend([torch.stack(grads).norm()] if grads else [])

    trained(1, tmp_path, gradient_clip_val=0.01, callbacks=[Watch()])
    assert norms and max(norms) <= 0.01 * (1 + 1e-5)


def test_the_schedule_reaches_the_optimizer(tmp_path):
    _, trainer = trained(2, tmp_path)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-2 * 0.75)
