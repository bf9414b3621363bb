"""What a run says of its origin is read without a change to the work tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pathsgd_lab.run import provenance


def test_asking_git_writes_nothing(tmp_path: Path) -> None:
    """Not even where a file has only been touched: git would write its index anew."""
    place = tmp_path / "src"
    place.mkdir()
    module = place / "provenance.py"
    module.write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    os.utime(module, (1, 1))
    before = (tmp_path / ".git" / "index").read_bytes()
    assert provenance._git(place, "status", "--porcelain", "--", str(place)) == ""
    assert (tmp_path / ".git" / "index").read_bytes() == before
