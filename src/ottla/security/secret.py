"""A password or key in memory: Kafka's `Password`. Only callers that ask for it by name see it."""

from __future__ import annotations

from typing import Final

HIDDEN: Final = "[hidden]"


class Secret:
    """A text that no `repr`, log line or error message contains."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text
