"""Install the frameworks that `make ecosystem` runs, in an environment of their own: build/ecosystem.

What cannot be had is left out, with the reason; its tests are skipped and say so.
"""

from __future__ import annotations

import subprocess
import sys
import venv

from ecosystem.frameworks import ENVIRONMENT, FRAMEWORKS, PYTHON


def main() -> None:
    if not PYTHON.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    for name, requirements in FRAMEWORKS.items():
        done = subprocess.run(
            [PYTHON, "-m", "pip", "install", "-q", *requirements], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{name} cannot be had here: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
