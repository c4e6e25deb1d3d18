"""Regular expressions in RE2's syntax, in which Kafka lets clients write them: they take linear time.

`re` will not do: its backtracking would let a client stop the node. The library is loaded at the first
pattern. It may be missing where it has no wheels, as on Linux with musl; patterns are refused then.
"""

from __future__ import annotations

from typing import Any


def compile_re2(pattern: str) -> Any:
    """Compile `pattern`. ValueError says why it cannot be."""
    try:
        import re2
    except ImportError:
        raise ValueError("this node lacks the package google-re2, which reads patterns; install it") from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(str(error)) from None
