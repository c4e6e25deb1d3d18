"""How many seeds the random tests of the state machines live through.

Every run takes a few hundred; `OTTLA_MODEL_SEEDS` asks for thousands, as `make fuzz` does.
"""

from __future__ import annotations

import os


def seeds(default: int) -> range:
    return range(int(os.environ.get("OTTLA_MODEL_SEEDS", default)))
