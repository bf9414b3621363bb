"""``pathsgd``: finds the subcommand; a user's mistake gives one line and exit code 2."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

DESCRIPTION = "Path-normalized optimisation of ReLU networks: every experiment of the paper."
EPILOGUE = """\
Examples:
  pathsgd demo                                   two minutes: four optimisers, two scalings
  pathsgd train adding rnn_path --length 100     one run; Ctrl-C stops, pathsgd resume RUN continues
  pathsgd sweep adding rnn_path --grid lr=1e-3,3e-3 seed=0,1,2
  pathsgd reproduce adding --scale laptop                 a table of the paper
  pathsgd inspect package.module:factory --input 1,100,2  what the library sees in your own model

`pathsgd COMMAND --help` explains a command."""


@dataclass(frozen=True)
class Command:
    """A subcommand: where it is and what it does."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "demo", "the same ReLU RNN by SGD, Adam and the path optimisers, balanced and badly scaled"
    ),
    "train": Command("train", "train one system on one task"),
    "resume": Command("resume", "continue a run that was interrupted, bit for bit"),
    "sweep": Command("sweep", "train a grid of runs in parallel, each once"),
    "reproduce": Command(
        "reproduce", "run a table or figure of the paper at paper, laptop or smoke scale"
    ),
    "compare": Command(
        "compare", "the path optimisers against what people use, at paper, laptop or smoke scale"
    ),
    "report": Command("report", "make a page with tables and figures from records"),
    "tables": Command("tables", "write the tables of Markdown pages anew, from records"),
    "inspect": Command(
        "inspect", "show operations, gamma^2, kappa and balance of a model of your own"
    ),
    "export": Command(
        "export", "write a trained model as ONNX, checked, with size and latency beside an LSTM"
    ),
    "data": Command("data", "list, fetch or check the data sets"),
}


def help_text() -> str:
    """What ``pathsgd --help`` says."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: pathsgd COMMAND [...]", "", DESCRIPTION, "", "Commands:", *lines, "", EPILOGUE]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; exit code 0: success, 2: a mistake, 130: an interruption."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if words[0] == "--version":
        from pathsgd_lab import __version__

        print(f"pathsgd {__version__}")
        return 0
    if words[0] not in COMMANDS:
        return complain(f"unknown command {words[0]!r}; choose one of {', '.join(COMMANDS)}")
    logging.basicConfig(level=logging.WARNING, handlers=[_handler()])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    return run(COMMANDS[words[0]], words[1:])


def run(command: Command, words: list[str]) -> int:
    """Call a subcommand and handle what may go wrong by the user's hand."""
    from pathsgd.errors import UnsupportedOperation
    from pathsgd_lab.errors import LabError

    try:
        module = importlib.import_module(f"pathsgd_lab.commands.{command.module}")
    except ModuleNotFoundError as error:
        return complain(
            f"the package {error.name} is missing; install what the lab needs: pip install "
            "pathsgd-lab"
        )
    try:
        code: int = module.main(words)
        return code
    except (LabError, UnsupportedOperation) as error:
        return complain(str(error))
    except OSError as error:  # the disk is full, read-only, or has something else in that place
        if isinstance(error, BrokenPipeError):
            return _leave_quietly()
        where = " -> ".join(
            str(name) for name in (error.filename, error.filename2) if name is not None
        )
        return complain(f"{error.strerror or error}{f': {where}' if where else ''}")
    except SystemExit as leaving:  # --help, after printing
        return int(leaving.code or 0)
    except KeyboardInterrupt:
        print("\npathsgd: interrupted", file=sys.stderr)
        return 130


def _leave_quietly() -> int:
    """The reader (head, less) has closed the pipe: redirect stdout, or Python complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def complain(message: str) -> int:
    """One line, and the exit code of a mistake."""
    print(f"pathsgd: error: {one_line(message)}", file=sys.stderr)
    return 2


def one_line(message: str) -> str:
    """A message in one line, with nothing in it that a terminal would obey."""
    line = " ".join(message.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def _handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("pathsgd: %(levelname)s: %(message)s"))
    return handler


if __name__ == "__main__":
    sys.exit(main())
