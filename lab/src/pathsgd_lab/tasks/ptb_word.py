"""Penn Treebank, word level: predict the next of 10,000 words (perplexity).

Mikolov's preparation of the corpus: lower case, numbers as N, rare words as <unk>; every line end
is a word <eos> of its own, which makes 929,589 / 73,760 / 82,430 words for training, validation and
test.  The paper (figure 1) trains 200 units on windows of 20 steps in batches of 32, all weights
from U[-0.1, 0.1].
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from pathsgd_lab.data.files import damaged, data_directory, verified
from pathsgd_lab.errors import DataError
from pathsgd_lab.tasks.base import Metric, PaperSettings, Split
from pathsgd_lab.tasks.text import TextData, TextTask

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True)
class PtbWordTask(TextTask):
    """Next word of the Penn Treebank (perplexity; chance is the vocabulary, 10000)."""

    name: ClassVar[str] = "ptb_word"
    title: ClassVar[str] = "PTB words"
    metric: ClassVar[Metric] = "perplexity"
    data_set: ClassVar[str | None] = "ptb"
    paper: ClassVar[PaperSettings] = PaperSettings(200, 200, "uniform", 0.1, 0.1, batch_size=32)

    window: int = 20
    """Steps of back-propagation; the state is carried on."""
    vocabulary: int = 10_000
    """Words in the model; must hold every word of the training text."""
    limit: int = 0
    """Use only the first so many words of each split, for a quick trial; 0: all."""

    def prepare(self, data_dir: Path | str | None = None) -> TextData:
        """Read the three files; words are numbered by their frequency in training, then by name."""
        directory = data_directory(data_dir)
        words = {
            split: ptb_words(verified("ptb", f"ptb.{split}.txt", directory)) for split in SPLITS
        }
        counts = Counter(words["train"])
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        index = {word: number for number, word in enumerate(ranked)}
        if len(index) > self.vocabulary:
            raise DataError(
                f"the training text has {len(index)} words, more than vocabulary={self.vocabulary}"
            )
        texts = {}
        for split, sequence in words.items():
            chosen = sequence[: self.limit] if self.limit else sequence
            unknown = next((word for word in chosen if word not in index), None)
            if unknown is not None:
                raise DataError(
                    f"{directory}/ptb/ptb.{split}.txt has a word the training text has not: "
                    f"{unknown!r}"
                )
            texts[split] = torch.tensor([index[word] for word in chosen], dtype=torch.int32)
        return TextData(self, texts)


def ptb_words(path: Path) -> list[str]:
    """The words of a file, each line closed by <eos>."""
    return [word for line in ptb_lines(path) for word in (*line.split(), "<eos>")]


def ptb_lines(path: Path) -> list[str]:
    """The lines of a file of the Penn Treebank."""
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise damaged("ptb", path, error) from error
