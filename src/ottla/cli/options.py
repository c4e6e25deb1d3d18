"""The options that commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from ottla.cli.commands import Option
from ottla.cli.errors import WrongUsage

BOOTSTRAP_VARIABLE: Final = "OTTLA_BOOTSTRAP_SERVERS"
DEFAULT_BOOTSTRAP_SERVERS: Final = "localhost:9092"
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_IDS: Final = 100_000

Bootstrap: TypeAlias = Annotated[
    str,
    Option(
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT[,...]",
        help="Brokers to connect to first.",
    ),
]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print JSON.")]
Timeout: TypeAlias = Annotated[
    float, Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an answer.")
]


@dataclass(frozen=True, slots=True)
class Common:
    """The options of each command that asks a cluster: its function has one parameter for them."""

    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS
    timeout: Timeout = DEFAULT_TIMEOUT_S
    as_json: Json = False


COMMON: Final = Common()
Yes: TypeAlias = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
ClientSettings: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--set",
        "-X",
        metavar="NAME=VALUE",
        help="A setting of the client, such as linger.ms=10; may be repeated.",
    ),
]
DryRun: TypeAlias = Annotated[bool, Option("--dry-run", help="Check the request and change nothing.")]


def named_values(option: str, entries: Iterable[str]) -> dict[str, str]:
    """Parse the values of a repeated NAME=VALUE option."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"{option} {entry}: expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def client_settings(entries: list[str] | None) -> dict[str, str]:
    """The values of `--set` for a client, as keywords; it converts them to their types."""
    given = named_values("--set", entries or ())
    return {name.replace(".", "_").replace("-", "_"): value for name, value in given.items()}


@contextmanager
def settings_checked(given: Mapping[str, str]) -> Iterator[None]:
    """Have a client that refuses its settings name the option that has them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise WrongUsage(f"--set: {error}" if given else str(error)) from None


def known_values(option: str, values: Iterable[str] | None, known: Iterable[str]) -> list[str]:
    """The values of an option as Kafka writes them; WrongUsage if one is not known.

    A broker answers that there is nothing in a state that does not exist, and the user would take that for
    the truth.

    >>> known_values("--state", ["stable"], ["Stable", "Empty"])
    ['Stable']
    """
    spellings = {each.lower(): each for each in known}
    found = []
    for value in values or ():
        spelling = spellings.get(value.lower())
        if spelling is None:
            raise WrongUsage(f"{option} {value}: known are {', '.join(spellings.values())}")
        found.append(spelling)
    return found


def parse_ids(option: str, text: str | None) -> list[int] | None:
    """Parse comma-separated numbers and ranges such as 0-3.

    >>> parse_ids("--partitions", "0,2-4")
    [0, 2, 3, 4]
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise WrongUsage(f"{option} {text}: expected numbers such as 0,2 or 0-3")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low >= MAX_IDS:
            raise WrongUsage(f"{option} {text}: {part} is not a range from low to high")
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


def parse_partition(option: str, text: str) -> tuple[str, int]:
    """Parse a partition as TOPIC:NUMBER."""
    topic, colon, number = text.rpartition(":")
    if not colon or not topic or not number.isdecimal():
        raise WrongUsage(f"{option} {text}: expected TOPIC:PARTITION such as orders:0")
    return topic, int(number)
