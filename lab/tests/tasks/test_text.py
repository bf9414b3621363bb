"""Text tasks: windows, carried state, and how the files become symbols."""

import bz2
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pathsgd_lab.errors import DataError
from pathsgd_lab.tasks import PtbCharTask, PtbWordTask, Text8Task, text8
from pathsgd_lab.tasks.ptb_char import ALPHABET, character_form
from pathsgd_lab.tasks.text import TextData, TextTask, WindowStream
from support.data import list_checksums


@given(count=st.integers(10, 300), batch_size=st.integers(1, 6), window=st.integers(1, 12))
def test_training_windows_are_contiguous_rows(count: int, batch_size: int, window: int) -> None:
    text = torch.arange(count, dtype=torch.int32)
    row = (count - 1) // batch_size
    if row < window:
        with pytest.raises(ValueError, match="use a smaller batch or window"):
            WindowStream(text, batch_size, window)
        return
    stream = WindowStream(text, batch_size, window)
    for _ in range(2):
        batches = [stream.next() for _ in range(row // window)]
        assert [batch.carry for batch in batches] == [False] + [True] * (len(batches) - 1)
        inputs = torch.cat([batch.inputs for batch in batches])
        targets = torch.cat([batch.targets for batch in batches])
        steps = row // window * window
        expected = torch.arange(steps).unsqueeze(1) + row * torch.arange(batch_size)
        assert torch.equal(inputs, expected)
        assert torch.equal(targets, expected + 1)
    assert stream.epoch == 2.0


@given(count=st.integers(2, 300), batch_size=st.integers(1, 8), window=st.integers(1, 12))
def test_evaluation_predicts_every_symbol_but_the_first_exactly_once(
    count: int, batch_size: int, window: int
) -> None:
    text = torch.arange(count)
    data = TextData(PtbCharTask(window=window), {"train": text, "valid": text, "test": text})
    seen = []
    for batch in data.eval_batches("valid", batch_size):
        assert torch.equal(batch.targets, batch.inputs + 1)
        assert len(batch.inputs) <= window
        seen.append(batch.targets.flatten())
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(1, count))


class RunningMean(nn.Module):
    """Its output at each step depends on all symbols since the state was last reset."""

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        before = torch.zeros(inputs.shape[1]) if state is None else state[0]
        total = before + inputs.float().cumsum(0)
        logits = torch.sin(total.unsqueeze(-1) * torch.arange(1, 51))
        return logits, (total[-1],)


def test_the_state_is_carried_from_window_to_window() -> None:
    text = torch.randint(0, 50, (101,), generator=torch.Generator().manual_seed(0))
    texts = {"train": text, "valid": text, "test": text}
    whole, windows = (TextData(PtbCharTask(window=size), texts) for size in (100, 7))  # type: ignore[arg-type]
    model = RunningMean()
    assert windows.evaluate(model, "test", batch_size=1) == pytest.approx(
        whole.evaluate(model, "test", batch_size=1), rel=1e-5
    )
    assert windows.evaluate(model, "test", batch_size=4) != pytest.approx(
        whole.evaluate(model, "test", batch_size=1), rel=1e-3
    )


def test_words_are_numbered_by_frequency_and_lines_end_in_eos(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", " b a b \n c a b \n"), ("valid", " a \n"), ("test", " c c \n")):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    texts = prepared(PtbWordTask(window=1), tmp_path).texts
    # b three times, <eos> and a twice each, c once.
    assert texts["train"].tolist() == [0, 2, 0, 1, 3, 2, 0, 1]
    assert texts["valid"].tolist() == [2, 1]
    assert texts["test"].tolist() == [3, 3, 1]


def test_words_outside_the_training_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for split, text in (("train", " a b \n"), ("valid", " a \n"), ("test", " z \n")):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    with pytest.raises(DataError, match="a word the training text has not: 'z'"):
        prepared(PtbWordTask(window=1), tmp_path)
    with pytest.raises(DataError, match="has 3 words, more than vocabulary=2"):
        prepared(PtbWordTask(window=1, vocabulary=2), tmp_path)


def test_characters_are_spelt_as_in_the_published_character_files() -> None:
    assert character_form([" no it was n't <unk> \\ N ", " a "]) == "no_it_was_n't_<unk>_\\_N\na\n"
    assert len(ALPHABET) == len(set(ALPHABET)) == 50


def test_character_text_is_the_spelling_of_the_words(tiny_data: Path) -> None:
    texts = PtbCharTask().prepare(tiny_data).texts
    for split, symbols in texts.items():
        spelt = "".join(ALPHABET[i] for i in symbols.tolist())
        words = (tiny_data / "ptb" / f"ptb.{split}.txt").read_text()
        assert (
            spelt.replace("\n", " <eos> ").replace("_", " ").split()
            == words.replace("\n", " <eos> ").split()
        )
    limited = PtbCharTask(limit=10).prepare(tiny_data).texts
    assert all(torch.equal(limited[split], texts[split][:10]) for split in texts)


def test_strange_characters_and_encodings_are_errors(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(" a b \n")
    (tmp_path / "ptb" / "ptb.test.txt").write_text(" Upper \n")
    with pytest.raises(DataError, match="characters outside the 50 symbols"):
        prepared(PtbCharTask(window=1), tmp_path)
    (tmp_path / "ptb" / "ptb.test.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is damaged"):
        prepared(PtbCharTask(window=1), tmp_path)


@pytest.mark.parametrize(
    ("task", "name"), [(PtbWordTask(), "ptb"), (PtbCharTask(), "ptb"), (Text8Task(), "text8")]
)
def test_missing_files_say_how_to_get_them(tmp_path: Path, task: PtbWordTask, name: str) -> None:
    with pytest.raises(DataError, match=f"run `pathsgd data fetch {name}`"):
        task.prepare(tmp_path)


def prepared(task: TextTask, directory: Path) -> TextData:
    """The task's data from files of one's own."""
    for folder in directory.iterdir():
        list_checksums(folder)
    return task.prepare(directory)  # type: ignore[return-value]


def write_zip(directory: Path, members: dict[str, bytes]) -> Path:
    (directory / "text8").mkdir(exist_ok=True)
    path = directory / "text8" / "text8.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


TEXT = b"the quick brown fox jumps over the lazy dog " * 50


def test_the_whole_of_text8_is_split_ninety_five_five(tmp_path: Path) -> None:
    write_zip(tmp_path, {"text8": TEXT[:2000]})
    with mock.patch.multiple(text8, FULL_LENGTH=2000, FULL_HELD_OUT=100):
        texts = prepared(Text8Task(), tmp_path).texts
    assert [len(texts[split]) for split in ("train", "valid", "test")] == [1800, 100, 100]
    spelt = "".join(
        " abcdefghijklmnopqrstuvwxyz"[i] for split in texts.values() for i in split.tolist()
    )
    assert spelt.encode() == TEXT[:2000]


def test_the_prefix_of_text8_has_its_own_split_and_gives_way_to_the_whole(tmp_path: Path) -> None:
    (tmp_path / "text8").mkdir()
    (tmp_path / "text8" / "text8.first74000000.bz2").write_bytes(bz2.compress(TEXT[:1480]))
    with mock.patch.multiple(
        text8, PREFIX_LENGTH=1480, PREFIX_HELD_OUT=80, FULL_LENGTH=2000, FULL_HELD_OUT=100
    ):
        texts = prepared(Text8Task(), tmp_path).texts
        assert [len(texts[split]) for split in ("train", "valid", "test")] == [1320, 80, 80]
        write_zip(tmp_path, {"text8": TEXT[:2000]})
        assert len(prepared(Text8Task(), tmp_path).texts["train"]) == 1800
    limited = prepared(Text8Task(limit=200), tmp_path).texts
    assert [len(limited[split]) for split in ("train", "valid", "test")] == [160, 20, 20]


def test_an_archive_with_names_that_lead_astray_writes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_zip(data, {"../../escaped": TEXT, "/absolute": TEXT, "other": TEXT})
    list_checksums(data / "text8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="has no member text8"):
        Text8Task(limit=100).prepare(data)
    assert sorted(tmp_path.rglob("*")) == before


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = write_zip(tmp_path, {"text8": TEXT})
    good = path.read_bytes()
    path.write_bytes(good[:-30])
    with pytest.raises(DataError, match=r"text8\.zip is damaged"):
        prepared(Text8Task(limit=100), tmp_path)
    path.write_bytes(good)
    with pytest.raises(DataError, match="2200 of 5000 characters"):
        prepared(Text8Task(limit=5000), tmp_path)
    write_zip(tmp_path, {"text8": b"Not text8! " * 20})
    with pytest.raises(DataError, match="other than space and a to z"):
        prepared(Text8Task(limit=100), tmp_path)
    path.unlink()
    prefix = tmp_path / "text8" / "text8.first74000000.bz2"
    prefix.write_bytes(bz2.compress(TEXT)[:-20])
    with pytest.raises(DataError, match="bz2 is damaged"):
        prepared(Text8Task(limit=2200), tmp_path)
