"""Checkpoints: any tree of tensors and plain values, in one file, whole or not at all.

A file is in the safetensors format: tensors by number, and in its header the tree as JSON and a
sha256 of both.
Nothing is ever unpickled.  A new checkpoint is written under another name, flushed to the disk and
then renamed; the last two are kept, so that one damaged file costs a few minutes, not the run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pathsgd_lab.errors import CheckpointError
from pathsgd_lab.files import remove, write_file

KEPT = 2
PATTERN = "checkpoint-*.safetensors"

log = logging.getLogger(__name__)


def flatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON values; its tensors go into ``tensors``, each replaced by its number.

    Lists stay lists; what JSON does not have is an object with one marked key: {"=tensor": n},
    {"=tuple": [...]}, {"=dict": [[key, value], ...]} (keys of optimiser states are numbers).
    """
    if isinstance(tree, Tensor):
        number = str(len(tensors))
        # A copy of its own: safetensors refuses tensors that share memory.
        tensors[number] = tree.detach().cpu().contiguous().clone()
        return {"=tensor": number}
    if isinstance(tree, dict):
        return {"=dict": [[flatten(k, tensors), flatten(v, tensors)] for k, v in tree.items()]}
    if isinstance(tree, tuple):
        return {"=tuple": [flatten(v, tensors) for v in tree]}
    if isinstance(tree, list):
        return [flatten(v, tensors) for v in tree]
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    raise TypeError(
        "a checkpoint holds tensors, numbers, strings, lists, tuples and dictionaries, not "
        f"{type(tree)}"
    )


def unflatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that ``flatten`` took apart."""
    if isinstance(tree, list):
        return [unflatten(v, tensors) for v in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "=tensor":
        return tensors[content]
    if kind == "=tuple":
        return tuple(unflatten(v, tensors) for v in content)
    if kind == "=dict":
        return {unflatten(k, tensors): unflatten(v, tensors) for k, v in content}
    raise CheckpointError(f"unknown mark {kind!r}")


def digest(text: str, tensors: dict[str, Tensor]) -> str:
    """sha256 of the JSON and of every tensor's type, shape and bytes."""
    sha = hashlib.sha256(text.encode())
    for number in sorted(tensors, key=int):
        tensor = tensors[number]
        sha.update(f"{number} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def save(directory: Path, step: int, tree: Any) -> Path:
    """Write the checkpoint of a step, and delete those before the last two."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(flatten(tree, tensors))
    path = directory / PATTERN.replace("*", f"{step:010d}")
    write_file(path, to_bytes(tensors, {"tree": text, "sha256": digest(text, tensors)}))
    remove(paths(directory)[KEPT:])
    return path


def paths(directory: Path) -> list[Path]:
    """Checkpoints of a run, the newest first."""
    return sorted(directory.glob(PATTERN), reverse=True)


def read(path: Path) -> Any:
    """The tree in one file; an error that says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copies, at addresses that torch aligns: matrix products of the same numbers may differ
            # in their last bits between an aligned and an unaligned operand.
            tensors = {number: file.get_tensor(number).clone() for number in file.keys()}  # noqa: SIM118
        text, expected = header["tree"], header["sha256"]
        if digest(text, tensors) != expected:
            raise CheckpointError(f"{path} does not have the checksum it was written with")
        return unflatten(json.loads(text), tensors)
    except CheckpointError:
        raise
    except (SafetensorError, OSError, RecursionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error or type(error).__name__})") from error


def load_newest(directory: Path) -> Any | None:
    """The newest readable checkpoint, if any, with a warning for each damaged one."""
    found = paths(directory)
    for path in found:
        content = _read_or_warn(path)
        if content is not None:
            return content
    if found:
        raise CheckpointError(
            f"no checkpoint in {directory} can be read; delete it and start the run anew"
        )
    return None


def _read_or_warn(path: Path) -> Any | None:
    try:
        return read(path)
    except CheckpointError as error:
        log.warning("%s; going back to the checkpoint before it", error)
        return None
