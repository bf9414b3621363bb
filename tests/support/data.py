"""Data of one's own: what a folder needs beside it."""

import hashlib
from pathlib import Path


def list_checksums(folder: Path) -> None:
    """Write SHA256SUMS for the files of a folder, which makes them data of one's own."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
