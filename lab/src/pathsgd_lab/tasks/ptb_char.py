"""Penn Treebank, character level: predict the next of 50 symbols (bits per character).

Derived from the word-level files exactly as Mikolov's character files are: of each line, without
its outer spaces, every space becomes ``_``, every other character stands for itself (``<unk>`` is
five symbols), and a newline ends it.
That makes 5,017,482 / 393,042 / 442,423 symbols.  The paper trains on windows of 50 steps with 2048
units (LSTM: 1024), recurrent weights from U[-0.01, 0.01] and the others from U[-0.2, 0.2].  It does
not print the size of its batches; 64 is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from pathsgd_lab.data.files import data_directory, verified
from pathsgd_lab.errors import DataError
from pathsgd_lab.tasks.base import Metric, PaperSettings
from pathsgd_lab.tasks.ptb_word import SPLITS, ptb_lines
from pathsgd_lab.tasks.text import CHARACTERS, TextData, TextTask

ALPHABET = "\n#$&'*-./0123456789<>N\\_abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class PtbCharTask(TextTask):
    """Next character of the Penn Treebank (bits per character; chance is log2 50 = 5.64)."""

    name: ClassVar[str] = "ptb_char"
    title: ClassVar[str] = "PTB characters"
    metric: ClassVar[Metric] = "bpc"
    data_set: ClassVar[str | None] = "ptb"
    paper: ClassVar[PaperSettings] = CHARACTERS

    window: int = 50
    """Steps of back-propagation; the state is carried on."""
    limit: int = 0
    """Use only the first so many characters of each split, for a quick trial; 0: all."""

    @property
    def vocabulary(self) -> int:
        """Symbols of the alphabet."""
        return len(ALPHABET)

    def prepare(self, data_dir: Path | str | None = None) -> TextData:
        """Read the three word-level files and spell them."""
        directory = data_directory(data_dir)
        table = np.full(256, 255, dtype=np.uint8)
        table[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))
        texts = {}
        for split in SPLITS:
            path = verified("ptb", f"ptb.{split}.txt", directory)
            spelt = character_form(ptb_lines(path))
            used = spelt[: self.limit] if self.limit else spelt
            symbols = table[np.frombuffer(used.encode(), dtype=np.uint8)]
            if (symbols == 255).any():
                raise DataError(
                    f"{path} has characters outside the {len(ALPHABET)} symbols of the Penn "
                    "Treebank"
                )
            texts[split] = torch.from_numpy(symbols)
        return TextData(self, texts)


def character_form(lines: list[str]) -> str:
    """The symbol sequence of a word-level text."""
    return "".join(
        line.removeprefix(" ").removesuffix(" ").replace(" ", "_") + "\n" for line in lines
    )
