"""Try the properties of all tests with new cases, in rounds with a seed each, for some minutes.

    python tools/explore.py MINUTES [PYTEST ARGUMENTS]

The first round that fails ends it.  Add what it finds to the test as an `@example`.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time


def explored(seed: int, arguments: list[str]) -> bool:
    """Whether all properties hold for the cases of this seed."""
    words = ["-m", "hypothesis and not nightly", "--hypothesis-profile=explore"]
    command = [sys.executable, "-m", "pytest", *words, f"--hypothesis-seed={seed}", *arguments]
    print(f"round with --hypothesis-seed={seed}", flush=True)
    return subprocess.run(command, check=False).returncode == 0


def main(minutes: float, arguments: list[str]) -> int:
    """Exit code 1 if a case was found for which a property does not hold."""
    end = time.monotonic() + 60 * minutes
    rounds = 0
    while time.monotonic() < end:
        if not explored(secrets.randbits(32), arguments):
            return 1
        rounds += 1
    print(f"{rounds} rounds, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
