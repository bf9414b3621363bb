import torch

from with_transformers import main


def test_the_example_learns(counts):
    trainer = main()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.02 < losses[0]
    assert counts == {"measured": 64, "steps": 64}


def test_a_resumed_run_is_the_same_run(tmp_path):
    whole = main(str(tmp_path / "whole"), epochs=2)
    # The schedule is laid out for two epochs, and the run is stopped after the first.
    first = str(tmp_path / "first")
    main(first, epochs=2, save_strategy="steps", save_steps=16)
    (tmp_path / "first" / "checkpoint-32").rename(tmp_path / "later")
    resumed = main(first, epochs=2, resume=True)
    assert resumed.state.global_step == 32
    for p, q in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(p, q)


def test_accumulated_gradients_take_one_measurement(counts):
    main(epochs=1, gradient_accumulation_steps=2)
    assert counts == {"measured": 8, "steps": 8}
