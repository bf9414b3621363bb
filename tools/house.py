"""Measures of the code base: `python tools/house.py`.

Code lines hold code: no docstrings, comments or blank lines. A decision is counted where its
pattern matches in code; each should be taken in one file.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY, LAB = ROOT / "src" / "pathsgd", ROOT / "lab" / "src" / "pathsgd_lab"
LONGEST_FILE = 400

DECISIONS = {
    "metric kind": r"isinstance\([^)]*\b(Paper)?Metric\b|\bis_paper\b|"
    r"(?<!pathsgd\.metric)\.absolute\b|\bis_absolute\b",
    "device": r"\.is_cpu\b|\.is_cuda\b|\bdevice\.type\b|\bis_elsewhere\b",
    "sharding": r"\bis_sharded\(|\bspread is (not )?None\b|\bDTensor\b|\bfull_tensor\b",
}
"""What marks a place that takes each decision."""


def sources(root: Path) -> list[Path]:
    """The Python files of a package."""
    return sorted(root.rglob("*.py"))


def code_lines(path: Path) -> dict[int, str]:
    """The lines of a file that hold code, by number."""
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for child in node.body if isinstance(getattr(node, "body", None), list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                prose.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    skipped = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    lines = text.splitlines()
    held = {
        number
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in skipped
        for number in range(token.start[0], token.end[0] + 1)
    }
    return {number: lines[number - 1] for number in sorted(held - prose)}


def function_lengths(root: Path) -> list[tuple[int, str]]:
    """How many lines of code each function has, without the functions inside it, longest first."""
    found = []
    for path in sources(root):
        code = code_lines(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
                inside = sum(number in code for number in body)
                found.append((inside, f"{path.relative_to(root)}:{node.name}"))
    return sorted(found, reverse=True)


def decisions(root: Path, pattern: str) -> Iterator[str]:
    """The places where a decision is taken, as file:line."""
    for path in sources(root):
        for number, line in code_lines(path).items():
            if re.search(pattern, line.split("#")[0]):
                yield f"{path.relative_to(root)}:{number}"


def tracked() -> list[Path]:
    """Every file that git tracks."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def main() -> None:
    """Print every measure."""
    for name, root in (("library", LIBRARY), ("lab", LAB)):
        if not root.exists():
            continue
        lines = {path: len(code_lines(path)) for path in sources(root)}
        lengths = function_lengths(root)
        sizes = sorted(length for length, _ in lengths)
        print(
            f"{name}: {len(lines)} files, {sum(lines.values())} code lines; functions: median "
            f"{statistics.median(sizes):.0f}, 95 % {sizes[int(0.95 * len(sizes))]}, longest "
            f"{lengths[0]}"
        )
        long = [path for path in lines if len(path.read_text().splitlines()) > LONGEST_FILE]
        print(
            f"  over {LONGEST_FILE} lines: "
            f"{[str(path.relative_to(root)) for path in long] or 'none'}"
        )
        for decision, pattern in DECISIONS.items() if name == "library" else ():
            places = list(decisions(root, pattern))
            files = sorted({place.rsplit(":", 1)[0] for place in places})
            print(f"  {decision}: {len(places)} places in {len(files)} files: {', '.join(files)}")
    files = tracked()
    print(f"tracked: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
