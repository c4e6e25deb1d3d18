"""How the command line parses and prints positions, ids, formats and suggestions."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from ottla.cli import errors, formats, options, output, positions
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.formats import WrongFormat, bytes_of_json, encoder, json_bytes, make_formatter
from ottla.cli.options import parse_ids, parse_partition
from ottla.cli.positions import PartitionPosition, PositionKind, parse_position
from ottla.cli.session import run
from ottla.client.errors import RequestTimedOut


@pytest.mark.parametrize("module", [errors, formats, options, output, positions], ids=lambda m: m.__name__)
def test_examples_in_the_documentation_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Beginning", PartitionPosition(PositionKind.BEGINNING)),
        ("latest", PartitionPosition(PositionKind.END)),
        ("0", PartitionPosition(PositionKind.OFFSET, 0)),
        ("-3", PartitionPosition(PositionKind.BEFORE_END, 3)),
        ("@17", PartitionPosition(PositionKind.TIME, 17)),
        ("2s", PartitionPosition(PositionKind.TIME, 98_000)),
        ("1970-01-01T00:00:01+00:00", PartitionPosition(PositionKind.TIME, 1_000)),
        ("1970-01-02", PartitionPosition(PositionKind.TIME, 86_400_000)),
    ],
)
def test_a_place_is_read(text: str, place: PartitionPosition) -> None:
    assert parse_position("--from", text, 100_000) == place


@pytest.mark.parametrize("text", ["", "now", "--1", "1.5", "@", "5y", "9" * 20, "2026-13-01"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="expected beginning"):
        parse_position("--from", text, 0)


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "1,,2", "0-9999999"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        parse_ids("--partitions", text)


def test_a_topic_may_hold_a_colon_s_neighbours() -> None:
    assert parse_partition("partition", "a.b-c:12") == ("a.b-c", 12)
    with pytest.raises(WrongUsage):
        parse_partition("partition", "a.b-c")


@pytest.mark.parametrize("data", [None, b"", b"text", "größe".encode(), b"\xff\x00", b'{"a":1}'])
def test_bytes_survive_json(data: bytes | None) -> None:
    assert bytes_of_json(json_bytes("value", data), "value") == data


@pytest.mark.parametrize(
    ("kind", "text", "data"),
    [
        ("text", "ä", "ä".encode()),
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "AP8=", b"\x00\xff"),
        ("int16", "-2", b"\xff\xfe"),
        ("int32", "1", b"\0\0\0\1"),
        ("int64", "1", b"\0" * 7 + b"\1"),
        ("float64", "1.0", b"\x3f\xf0" + b"\0" * 6),
        ("json", "[1]", b"[1]"),
    ],
)
def test_what_is_typed_is_what_is_shown(kind: str, text: str, data: bytes) -> None:
    assert encoder(kind)(text) == data
    shown = make_formatter(kind)(data)
    assert str(shown) == text
    assert make_formatter(kind)(None) is None


@pytest.mark.parametrize(("kind", "data"), [("int32", b"abc"), ("float64", b""), ("json", b"{")])
def test_bytes_that_are_not_of_their_kind_are_not_shown_as_such(kind: str, data: bytes) -> None:
    with pytest.raises(WrongFormat):
        make_formatter(kind)(data)


@pytest.mark.parametrize(
    ("kind", "text"), [("int16", "40000"), ("hex", "xy"), ("base64", "a"), ("json", "{")]
)
def test_what_does_not_fit_its_kind_is_refused(kind: str, text: str) -> None:
    with pytest.raises(WrongUsage):
        encoder(kind)(text)


def test_an_answer_that_does_not_come_is_reported_with_the_likely_cause() -> None:
    async def ask() -> None:
        raise RequestTimedOut("b:1: no answer to CreateTopics within 5000 ms")

    with pytest.raises(CliError, match=r"CreateTopics within 5000 ms; .* most of its controllers are down"):
        run(ask())
