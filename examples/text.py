"""A plain ReLU RNN learns a text by characters, and writes one of its own.

python examples/text.py                       learns this project's documentation
python examples/text.py --text mine.txt       learns a file of yours
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pathsgd

DOCUMENTATION = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Options:
    """Learn a text, then write."""

    text: Path | None = None
    """A text file; None: the pages of this project's documentation."""
    steps: int = 3000
    units: int = 256
    length: int = 64
    """Characters through which gradients go back."""
    lr: float = 1e-2
    characters: int = 600
    """How many to write."""
    temperature: float = 0.7
    """Below 1 the likely characters become likelier."""
    seed: int = 0


class Writer(nn.Module):
    def __init__(self, alphabet: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, units)
        self.rnn = nn.RNN(units, units, nonlinearity="relu")
        self.out = nn.Linear(units, alphabet)
        bound = 0.5 / units**0.5
        for p in self.rnn.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, characters: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores of the next character (T, B, alphabet) and the last state (1, B, units)."""
        states, last = self.rnn(self.embedding(characters), state)
        return self.out(states), last


@torch.no_grad()
def write(net: Writer, alphabet: list[str], start: str, options: Options) -> str:
    """Characters drawn one after the other."""
    generator = torch.Generator().manual_seed(options.seed)
    written, state = list(start), None
    given = torch.tensor([alphabet.index(c) for c in start])[:, None]
    for _ in range(options.characters):
        scores, state = net(given, state)
        given = torch.multinomial(
            (scores[-1] / options.temperature).softmax(1), 1, generator=generator
        )
        written.append(alphabet[given.item()])
    return "".join(written)


def main(options: Options) -> tuple[float, str]:
    torch.manual_seed(options.seed)
    files = [options.text] if options.text else sorted(DOCUMENTATION.rglob("*.md"))
    text = "\n".join(file.read_text("utf-8") for file in files)
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    data = torch.tensor([number[character] for character in text])
    print(f"{len(text)} characters, {len(alphabet)} different ones")
    net = Writer(len(alphabet), options.units)
    # Dense nets for text: the metric without its size, as Adam's steps are (docs/which-form.md).
    optimizer = pathsgd.PathAdam(net, lr=options.lr, refresh_every=10, output=0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, options.steps)
    bits = 0.0
    for step in range(options.steps):
        starts = torch.randint(len(data) - options.length, (32,))
        piece = torch.stack([data[s : s + options.length + 1] for s in starts.tolist()], 1)
        loss = cross_entropy(net(piece[:-1])[0].flatten(0, 1), piece[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bits = loss.item() / torch.log(torch.tensor(2.0)).item()
        if step % 200 == 0:
            print(f"step {step:5}  {bits:.3f} bits a character", flush=True)
    written = write(net, alphabet, text[:8], options)
    print(f"\n{written}")
    return bits, written


if __name__ == "__main__":
    main(tyro.cli(Options))
