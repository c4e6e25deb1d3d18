"""Where the frameworks are, and which versions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ENVIRONMENT: Final = ROOT / "build" / "ecosystem"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
EXAMPLES: Final = ROOT / "examples"
FRAMEWORKS: Final = {
    "FastStream": ("faststream[kafka,confluent]==0.7.8",),
    "Quix Streams": ("quixstreams==3.28.1",),
}


def is_installed(module: str) -> bool:
    """Whether the environment has a module."""
    if not PYTHON.exists():
        return False
    found = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
    return found.returncode == 0
