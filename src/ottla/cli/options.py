"""The options that commands share, and the way commands are grouped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import typer

from ottla.cli.errors import WrongUsage

DEFAULT_BOOTSTRAP_SERVERS: Final = "localhost:9092"
SETTINGS: Final = {"help_option_names": ["--help", "-h"], "max_content_width": 100}

Bootstrap: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT[,...]",
        help="Brokers to begin with.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an answer.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Check the request and change nothing.")]

DEFAULT_TIMEOUT_S: Final = 30.0


def group(help: str) -> typer.Typer:
    """An application for the commands about one kind of thing."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=SETTINGS,
    )


def named_values(option: str, entries: Iterable[str]) -> dict[str, str]:
    """The pairs of a repeated NAME=VALUE option."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"{option} {entry}: expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def parse_ids(option: str, text: str | None) -> list[int] | None:
    """The numbers of a comma-separated option; ranges as 0-3 are fine.

    >>> parse_ids("--partitions", "0,2-4")
    [0, 2, 3, 4]
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise WrongUsage(f"{option} {text}: expected numbers, as 0,2 or 0-3")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low > 100_000:
            raise WrongUsage(f"{option} {text}: {part} is not a range from low to high")
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


def parse_partition(option: str, text: str) -> tuple[str, int]:
    """A partition as TOPIC:NUMBER."""
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isdecimal():
        raise WrongUsage(f"{option} {text}: expected TOPIC:PARTITION, as orders:0")
    return topic, int(number)


def choose(option: str, value: str, allowed: Mapping[str, object] | Iterable[str]) -> str:
    """The value if it is allowed, whatever its case and dashes."""
    plain = value.lower().replace("_", "-")
    names = list(allowed)
    if plain not in names:
        raise WrongUsage(f"{option} {value}: allowed are {', '.join(names)}")
    return plain
