"""Smoke test of an installed package: it has a kernel and runs the README. Needs nothing else."""

import re
from importlib.metadata import version
from pathlib import Path

import pathsgd

readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
exec(example, names := {"__name__": "example"})
assert names["optimizer"].state
backend = pathsgd.nn.backend()
assert backend.name != "torch", f"the wheel holds no kernel that works here: {backend}"
print(pathsgd.__file__, version("pathsgd"), backend)
