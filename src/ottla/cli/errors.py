"""The failures of a command: the message for the user, and the exit status.

Every failure is one line on stderr that names the subject and says what to do next. The exit status tells
scripts the kind of failure: the cluster refused or a file is damaged, the command line was wrong or named a
file that cannot be read, nothing answered, or a pipeline was not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The cluster refused, or something does not exist."""
USAGE: Final = 2
"""The command line is invalid, or names a file that cannot be read."""
UNREACHABLE: Final = 3
"""No broker, node or registry answered."""
REFUSED: Final = 4
"""A pipeline was not run: a person has to change something first, and to try again does not help."""
BUSY: Final = 5
"""A pipeline was not run, as another run of it goes on: to try again later helps."""
INTERRUPTED: Final = 130

MAX_SUGGESTIONS: Final = 3


class CliError(Exception):
    """Ends the command with one line on stderr, and `more` below it, and this exit status."""

    def __init__(self, message: str, *more: str, status: int = FAILED) -> None:
        super().__init__("\n".join((message, *more)))
        self.lines = (message, *more)
        self.status = status

    @classmethod
    def of_all(cls, failed: Sequence[str]) -> CliError:
        """Several failures, a line each."""
        first, *others = failed
        return cls(first, *(f"ottla: {each}" for each in others))


class WrongUsage(CliError):
    """An option or argument with an invalid value."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=USAGE)


def unreadable(file: str, error: OSError | UnicodeError) -> WrongUsage:
    """The error for a file that the command line names."""
    return WrongUsage(f"cannot read {file}: {error.strerror if isinstance(error, OSError) else 'not UTF-8'}")


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class OutputClosed(Exception):
    """The reader of the output has closed the pipe."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names most similar to `name`, the most similar first.

    >>> nearest("orders", ["order", "users"])
    ['order']
    """
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for each in known:
        by_lower.setdefault(each.lower(), each)
    close = get_close_matches(name.lower(), by_lower, n=MAX_SUGGESTIONS, cutoff=0.7)
    return [by_lower[each] for each in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty if no known name is similar.

    >>> "topic orders does not exist" + did_you_mean("orders", ["order"])
    'topic orders does not exist; did you mean order?'
    """
    close = nearest(name, known)
    if not close:
        return ""
    return (
        "; did you mean " + (" or ".join([", ".join(close[:-1]), close[-1]]) if close[1:] else close[0]) + "?"
    )
