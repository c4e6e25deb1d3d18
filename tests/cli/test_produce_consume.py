"""`ottla produce` and `ottla consume`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


def consume(ottla: CommandLine, topic: str, *options: str) -> str:
    return ottla.ok("consume", topic, "--from-beginning", "--exit", *options).out


def test_values_of_the_command_line_come_back(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "one", "two", "--partition", "0")
    assert consume(ottla, topic) == "one\ntwo\n"


@pytest.mark.witness
def test_lines_of_the_input_are_records(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "-p", "0", stdin="a\nb\n\nlast without an end")
    assert consume(ottla, topic) == "a\nb\n\nlast without an end\n"


def test_keys_are_split_off_and_shown(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "-p", "0", "--key-separator", ":", stdin="k1:v1\nk2:v:2\n")
    assert consume(ottla, topic, "--key") == "k1\tv1\nk2\tv:2\n"
    failed = ottla("produce", topic, "-K", ":", stdin="no key\n")
    assert failed.status == 1
    assert "no key separator" in failed.err


def test_where_each_record_went_is_printed_in_json(ottla: CommandLine, topic: str) -> None:
    sent = ottla.ok("produce", topic, "x", "y", "-p", "1", "--timestamp", "1234", "--json").json_lines
    assert [(s["partition"], s["offset"]) for s in sent] == [(1, 0), (1, 1)]


@pytest.mark.witness
def test_a_record_travels_through_json_without_loss(ottla: CommandLine, topic: str) -> None:
    ottla.ok(
        "produce", topic, "--key", "k", "-H", "a=1", "-H", "empty", "-p", "0", "--whole", stdin=b"\xff\x00"
    )
    ottla.ok("produce", topic, "--tombstone", "--key", "k", "-p", "0")
    first = consume(ottla, topic, "--json")
    ottla.ok("topics", "create", f"{topic}-copy", "-p", "1")
    ottla.ok("produce", f"{topic}-copy", "--json-input", stdin=first)
    assert consume(ottla, f"{topic}-copy", "--json").replace(f"{topic}-copy", topic) == first
    assert '"value_base64":"/wA="' in first
    assert '"value":null' in first


def test_a_format_string_shows_any_part(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "v", "-k", "key", "-H", "h=1", "-p", "1", "--timestamp", "86400000")
    shown = consume(ottla, topic, "--format", r"%p/%o %d %T %k(%K)=%s(%S) %h 100%%\n")
    assert shown == "1/0 1970-01-02T00:00:00.000Z 86400000 key(3)=v(1) h=1 100%\n"


def test_numbers_and_json_as_keys_and_values(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, '{"a": [1]}', "-k", "-5", "--key-format", "int64", "--value-format", "json")
    (record,) = ottla.ok(
        "consume", topic, "-o", "beginning", "-e", "--json", "--key-format", "int64", "--value-format", "json"
    ).json_lines
    assert record["key"] == -5
    assert record["value"] == {"a": [1]}
    assert consume(ottla, topic, "--value-format", "hex").strip() == b'{"a": [1]}'.hex()


def test_values_that_are_not_of_the_format_are_reported(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "abcd", "abc", "ab", "-p", "0")
    shown = ottla.ok("consume", topic, "--from-beginning", "-e", "--value-format", "int32")
    assert shown.out == f"{int.from_bytes(b'abcd')}\nabc\nab\n"
    assert shown.err.startswith("2 values with --value-format int32 did not fit")
    lines = ottla.ok("consume", topic, "-o", "1", "-n", "1", "--json", "--value-format", "int32").json_lines
    assert lines[0]["value"] == "abc"
    assert "3 bytes" in lines[0]["value_error"]


def test_an_offset_behind_the_end_is_reported(ottla: CommandLine, topic: str) -> None:
    read = ottla.ok("consume", topic, "--from", "7", "--exit")
    assert read.out == ""
    assert read.err.splitlines() == [
        f"{topic}-0 ends at 0, before 7: reading from the end",
        f"{topic}: nothing to show from offset 7 to the end",
    ]


def test_nothing_to_show_is_said(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "a", "-p", "0")
    read = ottla.ok("consume", topic, "-e")
    assert read.out == ""
    assert read.err == (
        f"{topic}: nothing to show from the end to the end; --from-beginning shows what is there\n"
    )
    read = ottla.ok("consume", topic, "--from-beginning", "-e", "--grep", "b")
    assert read.err == f"{topic}: nothing to show from the beginning to the end\n"
    assert ottla.ok("consume", topic, "--from-beginning", "-e").err == ""


def test_raw_records_are_the_bytes_as_they_are(ottla: CommandLine, topic: str) -> None:
    data = bytes(range(256)) + "größe\n".encode()
    ottla.ok("produce", topic, "--whole", "-p", "0", "-H", "h=1", stdin=data)
    ottla.ok("produce", topic, "--tombstone", "-k", "k", "-p", "0")
    begin = ("consume", topic, "--from-beginning", "--exit", "--raw")
    assert ottla.ok(*begin).raw == data
    assert ottla.ok(*begin, "--format", r"%k|%s|%h\xff").raw == b"|" + data + b"|h=1\xffk||\xff"
    assert ottla.ok(*begin, "--key").raw == b"\t" + data + b"k\t"


@pytest.mark.slow
@pytest.mark.parametrize("membership", [(), ("--group",), ("--share",)], ids=["alone", "group", "share"])
def test_a_reader_that_goes_away_ends_it(node_for_commands: LocalNode, membership: tuple[str, ...]) -> None:
    """`ottla consume ... | head -1` ends with `head`, and not with the next record."""
    ottla, topic = CommandLine(node_for_commands.bootstrap_servers), uuid4().hex[:16]
    ottla.ok("topics", "create", topic)
    ottla.ok("produce", topic, "a")
    option = [*membership, *([f"readers-of-{topic}"] if membership else [])]
    if "--share" in membership:
        ottla.ok("configs", "alter", "--group", option[-1], "--set", "share.auto.offset.reset=earliest")
    else:
        option.append("--from-beginning")
    servers = ["-b", node_for_commands.bootstrap_servers]
    reading = subprocess.Popen(
        [sys.executable, "-m", "ottla", "consume", topic, *option, *servers], stdout=subprocess.PIPE
    )
    try:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"a\n"
        reading.stdout.close()
        assert reading.wait(120) == 0
    finally:
        reading.kill()
        reading.wait()


def test_arguments_that_are_not_utf_8(ottla: CommandLine, topic: str) -> None:
    """As the shell hands them over: a key is bytes, a name is text."""
    ottla.ok("produce", topic, "v\udcff", "--key", "k\udcfe")
    assert ottla.ok("consume", topic, "--from-beginning", "-e", "--raw", "-k").raw == b"k\xfe\tv\xff"
    assert "n\\udcff is not UTF-8" in ottla("produce", "n\udcff", "v").err


def test_a_name_that_no_topic_can_have_is_explained(ottla: CommandLine) -> None:
    ended = ottla("produce", "my topic", "x")
    assert ended.status == 1
    assert "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'" in ended.err
    assert "longer than the max allowed length 249" in ottla("produce", "x" * 250, "x").err


def test_a_record_that_is_too_large_is_sent_when_the_limits_are_raised(
    ottla: CommandLine, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "record").write_bytes(bytes(1_500_000))
    sending = ("produce", topic, "--whole", "--file", str(tmp_path / "record"))
    ended = ottla(*sending)
    assert ended.status == 1
    assert "larger than max.request.size=1048576" in ended.err
    assert "--set max.request.size=BYTES" in ended.err
    larger = (*sending, "--set", "max.request.size=2000000")
    assert "--set max.message.bytes=BYTES" in ottla(*larger).err
    ottla.ok("configs", "alter", "--topic", topic, "--set", "max.message.bytes=2000000")
    ottla.ok(*larger)
    assert "there is no setting" in ottla(*sending, "--set", "max.request.sise=1").err


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("beginning", "abcde"),
        ("end", ""),
        ("3", "de"),
        ("-2", "de"),
        ("@3000", "cde"),
        ("1970-01-01T00:00:04Z", "de"),
        ("1h", ""),
        ("99", ""),
    ],
)
def test_reading_begins_at_a_place(ottla: CommandLine, topic: str, place: str, expected: str) -> None:
    for second, value in enumerate("abcde", 1):
        ottla.ok("produce", topic, value, "-p", "0", "--timestamp", str(second * 1000))
    assert ottla.ok("consume", topic, "--from", place, "--exit", "-f", "%s").out == expected


@pytest.mark.slow
def test_reading_stops_at_a_place_a_count_or_silence(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, *"abcde", "-p", "0")
    begin = ("consume", topic, "--from-beginning", "-f", "%s")
    assert ottla.ok(*begin, "--until", "3").out == "abc"
    assert ottla.ok(*begin, "--until", "-1").out == "abcd"
    assert ottla.ok(*begin, "--count", "2").out == "ab"
    for idle in ("1", "60"):  # a second is too short where the machine pauses before the first record
        read = ottla.ok(*begin, "--idle", idle).out
        if read == "abcde":
            break
    assert read == "abcde"


def test_only_matching_records_and_chosen_partitions(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "apple", "pear", "-p", "0")
    ottla.ok("produce", topic, "grape", "-p", "1")
    ottla.ok("produce", topic, "x", "-p", "1", "-H", "kind=apricot")
    assert consume(ottla, topic, "--grep", "^ap", "-p", "0") == "apple\n"
    assert sorted(consume(ottla, topic, "--grep", "ap").split()) == ["apple", "grape", "x"]
    assert consume(ottla, topic, "-p", "1") == "grape\nx\n"


def test_a_file_with_a_delimiter_of_its_own(ottla: CommandLine, topic: str, tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"one\0two\0")
    ottla.ok("produce", topic, "--file", str(tmp_path / "records"), "-D", r"\0", "-p", "0")
    assert consume(ottla, topic) == "one\ntwo\n"
    missing = ottla("produce", topic, "--file", str(tmp_path / "missing"))
    assert missing.status == 2
    assert "missing" in missing.err


def test_a_delimiter_may_be_where_the_input_is_cut(ottla: CommandLine, topic: str) -> None:
    values = [f"{n}" + "|" * (n % 3) + "x" * (64 * 1024 + n - 6) for n in range(4)]
    ottla.ok("produce", topic, "-p", "0", "-D", "||x|", stdin="||x|".join(values))
    assert consume(ottla, topic).splitlines() == values


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_many_records_with_every_codec(ottla: CommandLine, topic: str, codec: str) -> None:
    lines = [f"record {n}" for n in range(3_000)]
    ottla.ok("produce", topic, "-z", codec, "-p", "1", stdin="\n".join(lines))
    assert consume(ottla, topic).splitlines() == lines


def test_a_missing_topic_is_created_only_when_asked(ottla: CommandLine, topic: str) -> None:
    name = f"{topic}-created"
    refused = ottla("produce", name, "x")
    assert refused.status == 1
    assert "use --create to create it" in refused.err
    assert name not in ottla.ok("topics", "list", "--names").out.split()
    ottla.ok("produce", name, "x", "--create")
    assert consume(ottla, name) == "x\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["consume", "t", "--from", "yesterday"], "expected beginning, end"),
        (["consume", "t", "--from", "1", "--from-beginning"], "contradict"),
        (["consume", "t", "--format", "%z"], "there is no %z"),
        (["consume", "t", "--grep", "("], "--grep"),
        (["consume", "t", "-p", "x"], "expected numbers"),
        (["produce", "t", "--tombstone"], "--tombstone"),
        (["produce", "t", "x", "--file", "y"], "not both"),
        (["produce", "t", "x", "--value-format", "int32"], "not a number"),
        (["produce", "t", "{", "--value-format", "json"], "not JSON"),
        (["produce", "t", "x", "--header", "=1"], "--header"),
        (["consume", "t", "--raw", "--json"], "contradict"),
        (["consume", "t", "--raw", "--value-format", "hex"], "--raw"),
    ],
)
def test_what_makes_no_sense_is_refused(offline: CommandLine, arguments: list[str], complaint: str) -> None:
    ended = offline(*arguments)
    assert ended.status == 2
    assert complaint in ended.err


def test_input_that_is_no_json_is_shown(ottla: CommandLine, topic: str) -> None:
    ended = ottla("produce", topic, "--json-input", stdin="nonsense\n")
    assert ended.status == 1
    assert "'nonsense' is not a record in JSON" in ended.err
