"""The header `traceparent`, by W3C's recommendation: a version, the ids of the trace and of a span, flags."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def is_traceparent(text: str) -> bool:
    """Whether a text has the form of the header.

    >>> is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    True
    """
    return _FORM.fullmatch(text) is not None


def traceparent_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """The value of the header, if there is one and it is well formed; of several the last, as in Kafka's
    clients.
    """
    found = None
    for name, value in headers:
        if name == TRACEPARENT and value is not None:
            text = value.decode("ascii", "replace")
            found = text if is_traceparent(text) else found
    return found
