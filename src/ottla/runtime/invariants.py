"""The switch for invariants that are too expensive to check on every request.

Cheap invariants are plain `assert` statements and always on. Expensive ones stand behind `if
invariants.thorough:`; the tests and the simulator turn them on, a running node leaves them off.
"""

from __future__ import annotations

thorough = False


def check_thoroughly() -> None:
    """Turn the expensive invariants of this process on."""
    global thorough
    thorough = True
