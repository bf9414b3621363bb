"""Sequential and permuted MNIST, on small files in the real format."""

import gzip
import shutil
from pathlib import Path

import pytest
import torch

from pathsgd_lab.data import files
from pathsgd_lab.errors import DataError
from pathsgd_lab.tasks.smnist import PermutedMnistTask, SequentialMnistTask
from support.data import list_checksums


def test_an_image_becomes_its_pixels_row_by_row(tiny_data: Path) -> None:
    data = SequentialMnistTask(valid_size=10).prepare(tiny_data)
    batch = next(iter(data.eval_batches("test", batch_size=5)))
    with gzip.open(tiny_data / "mnist" / "t10k-images-idx3-ubyte.gz") as stream:
        raw = torch.tensor(list(stream.read()[16 : 16 + 5 * 784]), dtype=torch.float32).view(5, 784)
    torch.testing.assert_close(batch.inputs.squeeze(-1).t(), raw / 255.0)
    assert batch.targets.tolist() == [0, 1, 2, 3, 4]


def test_the_end_of_the_training_file_is_the_validation_set(tiny_data: Path) -> None:
    data = SequentialMnistTask(subsample=14, valid_size=7).prepare(tiny_data)
    assert {split: len(images) for split, images in data.sets.items()} == {
        "train": 53,
        "valid": 7,
        "test": 20,
    }
    assert data.sets["valid"].labels.tolist() == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("k", [2, 4, 7, 14])
def test_subsampling_averages_blocks(tiny_data: Path, k: int) -> None:
    full = next(iter(SequentialMnistTask(valid_size=5).prepare(tiny_data).eval_batches("test")))
    small = next(
        iter(SequentialMnistTask(valid_size=5, subsample=k).prepare(tiny_data).eval_batches("test"))
    )
    images = full.inputs.squeeze(-1).t().view(-1, 1, 28, 28)
    expected = torch.nn.functional.avg_pool2d(images, k).flatten(1).t().unsqueeze(-1)
    torch.testing.assert_close(small.inputs, expected)


def test_a_permutation_moves_every_pixel_the_same_way_in_every_image(tiny_data: Path) -> None:
    plain = next(iter(SequentialMnistTask(valid_size=5).prepare(tiny_data).eval_batches("test")))
    task = PermutedMnistTask(valid_size=5)
    permuted = next(iter(task.prepare(tiny_data).eval_batches("test")))
    order = task.pixel_order(784)
    assert sorted(order.tolist()) == list(range(784)) and order.tolist() != list(range(784))
    assert torch.equal(permuted.inputs, plain.inputs[order])
    assert not torch.equal(order, PermutedMnistTask(permutation_seed=1).pixel_order(784))
    # The task must stay the same task in every version of this package.
    assert order[:5].tolist() == [475, 623, 8, 681, 740]


def test_a_curriculum_goes_through_coarser_images(tiny_data: Path) -> None:
    stream = SequentialMnistTask(valid_size=5).prepare(tiny_data).stream(4, seed=0)
    for length in (16, 49, 196, 784):
        stream.set_length(length)
        assert stream.next().inputs.shape == (length, 4, 1)
    assert stream.state_dict()["length"] == 784
    with pytest.raises(ValueError, match="lengths 784, 196, 49, 16, 4, 1, not 100"):
        stream.set_length(100)


def test_limit_reads_only_the_first_images(tiny_data: Path) -> None:
    data = SequentialMnistTask(limit=12, valid_size=2).prepare(tiny_data)
    assert {split: len(images) for split, images in data.sets.items()} == {
        "train": 10,
        "valid": 2,
        "test": 12,
    }


def test_impossible_settings_are_refused(tiny_data: Path) -> None:
    with pytest.raises(ValueError, match="must divide 28"):
        SequentialMnistTask(subsample=3)
    with pytest.raises(DataError, match="leave none with valid_size=60"):
        SequentialMnistTask(valid_size=60).prepare(tiny_data)


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="run `pathsgd data fetch mnist`, or point --data-dir or"
    ) as caught:
        SequentialMnistTask().prepare(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def mnist_copy(tiny_data: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_data / "mnist", tmp_path / "mnist")
    return tmp_path


def damage(path: Path, kind: str) -> None:
    content = gzip.decompress(path.read_bytes())
    if kind == "cut archive":
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "not gzip":
        path.write_bytes(b"<html>403</html>")
    elif kind == "short data":
        path.write_bytes(gzip.compress(content[:-1]))
    elif kind == "wrong crc":
        whole = bytearray(path.read_bytes())
        whole[-8] ^= 1
        path.write_bytes(whole)
    elif kind == "more data":
        path.write_bytes(gzip.compress(content + b"more"))
    elif kind == "hostile header":
        path.write_bytes(gzip.compress(content[:4] + b"\x7f\xff\xff\xff" + content[8:]))
    elif kind == "wrong magic":
        path.write_bytes(gzip.compress(b"\0\0\x08\x02" + content[4:]))
    else:
        path.write_bytes(gzip.compress(content[:8]))


@pytest.mark.parametrize(
    "kind",
    [
        "cut archive",
        "not gzip",
        "short data",
        "wrong magic",
        "header only",
        "wrong crc",
        "more data",
        "hostile header",
    ],
)
def test_damaged_files_are_named(mnist_copy: Path, kind: str) -> None:
    path = mnist_copy / "mnist" / "train-images-idx3-ubyte.gz"
    damage(path, kind)
    list_checksums(path.parent)
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte.gz is damaged .*delete it and run"
    ):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)


def test_images_and_labels_must_go_together(mnist_copy: Path) -> None:
    mnist = mnist_copy / "mnist"
    shutil.copy(mnist / "t10k-labels-idx1-ubyte.gz", mnist / "train-labels-idx1-ubyte.gz")
    list_checksums(mnist)
    with pytest.raises(DataError, match="do not go with 20 labels"):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)


def test_no_bit_can_flip_unnoticed(mnist_copy: Path) -> None:
    """Every file, flipped in a hundred places: none is trained on."""
    SequentialMnistTask(valid_size=5).prepare(mnist_copy)
    for path in sorted((mnist_copy / "mnist").glob("*.gz")):
        whole = path.read_bytes()
        for place in range(0, 8 * len(whole), max(1, 8 * len(whole) // 100)):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            with pytest.raises(DataError, match=f"{path.name} is damaged"):
                SequentialMnistTask(valid_size=5).prepare(mnist_copy)
        path.write_bytes(whole)
    SequentialMnistTask(valid_size=5).prepare(mnist_copy)


def test_a_header_cannot_ask_for_memory(mnist_copy: Path) -> None:
    path = mnist_copy / "mnist" / "train-images-idx3-ubyte.gz"
    damage(path, "hostile header")
    list_checksums(path.parent)
    with pytest.raises(
        DataError, match=r"its header says \[2147483647, 28, 28\], which such a file cannot hold"
    ):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)


def test_a_file_is_compared_with_its_checksum_once(
    mnist_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = files.sha256_of
    monkeypatch.setattr(files, "sha256_of", lambda path: (read.append(path), real(path))[1])
    for _ in range(3):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)
    assert len(read) == 4


def test_without_checksums_of_one_s_own_the_canonical_ones_count(mnist_copy: Path) -> None:
    (mnist_copy / "mnist" / "SHA256SUMS").unlink()
    with pytest.raises(
        DataError,
        match=r"expected 440fcabf.*if it is data of your own, list its sha256 in SHA256SUMS",
    ):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)
    (mnist_copy / "mnist" / "SHA256SUMS").write_text("nonsense\n")
    with pytest.raises(DataError, match="SHA256SUMS must have a checksum and a name in every line"):
        SequentialMnistTask(valid_size=5).prepare(mnist_copy)
