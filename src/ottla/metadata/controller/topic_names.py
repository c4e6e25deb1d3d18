"""Which names a topic may have, and which names collide.

Metrics replace ``.`` by ``_``, so two names that differ only there would share their metrics: Kafka refuses
the second.
"""

from __future__ import annotations

import re
from typing import Final

MAX_NAME_LENGTH: Final = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def invalid_topic_name(name: str) -> str | None:
    """Why the name is not valid, in the words of the error message, or None."""
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = f"'{name}' is reserved"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"'{name}' is longer than {MAX_NAME_LENGTH} characters"
    elif _LEGAL.match(name) is None:
        reason = f"'{name}' has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    return None if reason is None else f"the topic's name is not valid: {reason}"


def can_collide(name: str) -> bool:
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Equal for two names exactly when they collide."""
    return name.replace(".", "_")
