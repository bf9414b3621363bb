"""The cost of `import pathsgd` beyond torch's own import: its own modules and hardly any others."""

import json
import subprocess
import sys

LOADED = """
import json, sys
import torch
before = set(sys.modules)
import pathsgd
print(json.dumps(sorted(set(sys.modules) - before)))
"""
STANDARD = {*sys.stdlib_module_names, "pathsgd"}
SMALL = {"torch.utils._device"}
"""The modules of torch that torch itself has not loaded."""


def test_importing_the_library_loads_nothing_of_weight() -> None:
    """torch._dynamo alone takes longer than the library; torch's own optimisers load it later."""
    result = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    others = {name for name in loaded if name.partition(".")[0] not in STANDARD}
    assert "pathsgd.optim" in loaded
    assert others - SMALL == set()
