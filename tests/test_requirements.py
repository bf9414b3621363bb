"""Installing leaves torch alone: nothing that we ask for brings another build of it along.

torchvision, torchaudio and the like require one exact torch. From the default index that is the
CUDA build, which replaces a CPU build by gigabytes.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TIED_TO_ONE_TORCH = re.compile(r"torch(vision|audio|text|data|ao)?|triton|nvidia-.*|cuda-.*")
"""Packages that pin torch, come with its CUDA build, or are torch itself."""
TORCH = "2.13.0"


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


LIBRARY, LAB = project(ROOT), project(ROOT / "lab")
EXTRAS = list(LIBRARY["optional-dependencies"])
ASKED_FOR = {
    "pathsgd": LIBRARY["dependencies"],
    "pathsgd-lab": LAB["dependencies"],
    **LIBRARY["optional-dependencies"],
}


def required(requirements: list[str]) -> dict[str, str]:
    """Every package these requirements bring along, and who requires it, among those installed."""
    found: dict[str, str] = {}
    queue = [(Requirement(text), "we") for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, asker = queue.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        found.setdefault(name, asker)
        if (name, extras) in seen or name in ("torch", "pathsgd"):
            continue
        seen.add((name, extras))
        queue += [(inner, name) for inner in wanted(name, extras)]
    return found


def wanted(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What an installed distribution requires here, with these extras."""
    try:
        inner = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return []
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [r for r in inner if r.marker is None or any(map(r.marker.evaluate, environments))]


@pytest.mark.parametrize("what", ASKED_FOR)
def test_no_installed_requirement_is_tied_to_one_torch(what: str) -> None:
    tied = {
        name: asker
        for name, asker in required(ASKED_FOR[what]).items()
        if TIED_TO_ONE_TORCH.fullmatch(name) and name != "torch"
    }
    assert tied == {}


def test_the_walk_follows_requirements_of_requirements() -> None:
    found = required(["pytest-xdist"])
    assert found["pytest"] == "pytest-xdist" and found["pluggy"] == "pytest"


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_a_lock_file_names_the_tested_torch_and_nothing_tied_to_another(lock: str) -> None:
    pins = dict(line.split("==") for line in (ROOT / lock).read_text().splitlines())
    tied = {name: pin for name, pin in pins.items() if TIED_TO_ONE_TORCH.fullmatch(name.lower())}
    assert tied == {"torch": TORCH}


def environment_with_torch(folder: Path) -> Path:
    """A new environment in which pip finds the tested torch by name and version only."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout
    metadata = Path(site.strip()) / f"torch-{TORCH}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n")
    (metadata / "INSTALLER").write_text("pip\n")
    (metadata / "RECORD").write_text("")
    return python


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["", "lab", *EXTRAS])
def test_pip_would_leave_an_installed_torch_alone(what: str, tmp_path: Path) -> None:
    python, report = environment_with_torch(tmp_path / "env"), tmp_path / "report.json"
    targets = {"": [str(ROOT)], "lab": [str(ROOT), str(ROOT / "lab")]}
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run(
        [*pip, "--dry-run", "--report", str(report), *targets.get(what, [f"{ROOT}[{what}]"])],
        check=True,
    )
    installed = [
        canonicalize_name(item["metadata"]["name"])
        for item in json.loads(report.read_text())["install"]
    ]
    assert "pathsgd" in installed
    assert [name for name in installed if TIED_TO_ONE_TORCH.fullmatch(name)] == []
