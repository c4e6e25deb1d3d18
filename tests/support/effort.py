"""How much work the long tests take upon themselves.

Every run takes a few hundred seeds and seconds of chaos; `make fuzz` asks for more: `OTTLA_MODEL_SEEDS` seeds
for the random lives of state machines, and with `OTTLA_THOROUGH=1` all variants of tests that otherwise show
one of each kind, and other examples of Hypothesis in each run.
"""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("OTTLA_THOROUGH", "") not in ("", "0")


def seeds(default: int) -> range:
    return range(int(os.environ.get("OTTLA_MODEL_SEEDS", default)))
