"""The entry point of the `ottla` command.

`start` has to be ready quickly and stay small, so it is recognised here, before anything is imported that
draws tables or parses options; `ottla.cli.app` runs every other command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # before the application handles it
        return INTERRUPTED
    except ImportError as error:
        if error.name != "ottla.records._kernel":
            raise
        print(f"ottla: {error}", file=sys.stderr)
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["start"]:
        from ottla.cli.start import start

        return start(arguments[1:])
    if arguments in (["--version"], ["version"]):
        from ottla import __version__

        print(f"ottla {__version__}")
        return 0
    from ottla.cli.app import run

    return run(arguments)
