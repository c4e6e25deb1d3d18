"""The `ottla` command inside a test: its output and exit status, without a process for each call."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ottla.cli.main import main

READING = frozenset(
    {
        "consume",
        "describe",
        "groups",
        "list",
        "offsets",
        "perf",
        "produce",
        "share-groups",
        "streams-groups",
        "transactions",
    }
)


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    raw: bytes
    """What was written to stdout."""
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a printed table, without its header."""
        return [line.split() for line in self.out.splitlines()[1:] if line]


class CommandLine:
    """Calls the command against one cluster. `settle` is called after each command that may have changed
    something, for clusters whose brokers get to know of changes later.
    """

    def __init__(self, bootstrap_servers: str, settle: Callable[[], None] | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._settle = settle

    def __call__(self, *arguments: str, stdin: str | bytes = b"") -> Ended:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        written, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
        environment = {"OTTLA_BOOTSTRAP_SERVERS": self.bootstrap_servers}
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))),
            patch.dict("os.environ", environment),
        ):
            status = main(list(arguments))
        if self._settle is not None and not READING.intersection(arguments[:2]):
            self._settle()
        out.flush()
        return Ended(status, written.getvalue(), err.getvalue())

    def ok(self, *arguments: str, stdin: str | bytes = b"") -> Ended:
        """Run a command that must succeed."""
        ended = self(*arguments, stdin=stdin)
        assert ended.status == 0, f"ottla {' '.join(arguments)} ended with {ended.status}: {ended.err}"
        return ended

    def fails(self, *arguments: str, status: int = 1) -> Ended:
        """Run a command that must fail."""
        ended = self(*arguments)
        assert ended.status == status, f"ottla {' '.join(arguments)} ended with {ended.status}: {ended.err}"
        return ended
