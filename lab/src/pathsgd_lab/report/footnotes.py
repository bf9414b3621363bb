"""What a reader must know beside a number: notes below a table, with marks where they belong.

A number is best at its own learning rate, over its own seeds, with its own clip.  A table that sets
such numbers side by side says where these are not alike:

    rate    the best rate is the lowest, the highest or the only one tried: others may be better
    seeds   fewer than another row of the table has
    clip    the bound on the gradient, where the rows have different ones
"""

from __future__ import annotations

from collections.abc import Sequence

from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, settings

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Footnotes:
    """The notes of one table in the order they are first needed; equal notes share one mark."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def marks(self, notes: Sequence[str]) -> str:
        """What to put behind a number that these notes belong to."""
        numbers = [self._numbers.setdefault(note, len(self._numbers) + 1) for note in notes]
        return " ".join(str(number).translate(_SUPERSCRIPTS) for number in numbers)

    def below(self, caption: str = "") -> str:
        """The table's caption, followed by its notes."""
        notes = [
            f"{str(number).translate(_SUPERSCRIPTS)} {note}."
            for note, number in self._numbers.items()
        ]
        return " ".join(filter(None, [caption, *notes]))


def notes_of(
    group: Sequence[Record], tried: Sequence[Record], rows: Sequence[Sequence[Record]]
) -> list[str]:
    """What to say of the runs that a row shows.

    tried: all runs of the row, among which the shown ones were chosen.
    rows: the runs that each row of the table shows.
    """
    found = [_rate_note(group[0].spec, [record.spec for record in tried])]
    most = max(map(len, rows))
    if len(group) < most:
        found.append(f"{_seeds(len(group))}, where another row has {most}")
    clips = {_clip(shown[0].spec) for shown in rows if shown} - {None}
    clip = _clip(group[0].spec)
    if len(clips) > 1 and clip is not None:
        found.append(
            f"gradients bounded by {clip:g}"
            if clip
            else "gradients not bounded, where other rows' are"
        )
    return [note for note in found if note]


def _rate_note(best: RunSpec, tried: Sequence[RunSpec]) -> str:
    rate, rates = (
        _setting(best, "lr"),
        sorted({lr for spec in tried if (lr := _setting(spec, "lr")) is not None}),
    )
    if rate is None:
        return ""
    if len(rates) == 1:
        return "the only learning rate that was tried"
    if rate in (rates[0], rates[-1]):
        end = "lowest" if rate == rates[0] else "highest"
        return f"the {end} of the {len(rates)} learning rates that were tried"
    return ""


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _clip(spec: RunSpec) -> float | None:
    return _setting(spec, "clip")


def _setting(spec: RunSpec, name: str) -> float | None:
    value = dict(settings(spec)).get(name)
    return None if value is None else float(value)
