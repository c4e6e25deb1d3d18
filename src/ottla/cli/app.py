"""The application: which commands there are, and where each lives.

Only the module of the command that was asked for is imported; of the others the table holds what `--help`
says. Shell completion, which must know all options of all commands, loads them all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final, NamedTuple

import typer

from ottla.cli.options import SETTINGS
from ottla.cli.session import guarded

COMPLETION_VARIABLE: Final = "_OTTLA_COMPLETE"
SUMMARY: Final = "A durable, distributed commit log that speaks Kafka."


class Entry(NamedTuple):
    module: str
    """Has a `register(root)` that adds the command."""
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "start": Entry("start_command", "Start a node."),
    "topics": Entry("topics", "Create, list, describe, change and delete topics."),
    "produce": Entry("produce", "Write records to a topic."),
    "consume": Entry("consume", "Read records of a topic."),
    "groups": Entry("groups", "See groups and their lag, move or delete their offsets."),
    "transactions": Entry("transactions", "See transactions, find and abort those that hang."),
    "configs": Entry("configs", "Describe and change the settings of topics, brokers and groups."),
    "offsets": Entry("offsets", "Show where partitions begin and end, or stood at a time."),
    "delete-records": Entry("delete_records", "Delete the records of partitions up to an offset."),
    "log-dirs": Entry("log_dirs", "Show the data directories of brokers and what lies in them."),
    "cluster": Entry("cluster", "Describe the cluster: brokers, features, APIs."),
    "quorum": Entry("quorum", "Describe the quorum of controllers."),
    "log": Entry("log_files", "Read the files of partitions; needs no node."),
    "storage": Entry("storage", "Look at data directories, and format them; needs no node."),
    "perf": Entry("perf", "Measure throughput and latency."),
}


def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    if version:
        from ottla import __version__

        print(f"ottla {__version__}")
        raise typer.Exit


def build(chosen: str | None = None, *, complete: bool = False) -> typer.Typer:
    """The application with `chosen` in full and the other commands by name (in full too if `complete`)."""
    root = typer.Typer(
        name="ottla",
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=SETTINGS,
    )
    root.callback(help=SUMMARY)(_options)
    for name, entry in COMMANDS.items():
        if complete or name == chosen:
            import_module(f"ottla.cli.{entry.module}").register(root)
        else:
            root.command(name, help=entry.help)(_placeholder)
    return root


def _placeholder() -> None:
    raise AssertionError("a command that was not loaded cannot be run")


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    return guarded(lambda: _run(list(arguments), chosen))


def _run(arguments: list[str], chosen: str | None) -> int:
    app = build(chosen, complete=COMPLETION_VARIABLE in os.environ)
    try:
        app(arguments, prog_name="ottla")
    except SystemExit as exit:
        if exit.code is not None and not isinstance(exit.code, int):
            print(exit.code, file=sys.stderr)
            return 1
        return exit.code or 0
    return 0
