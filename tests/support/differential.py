"""Two brokers, one script, no difference: what Ottla answers is held against what Apache Kafka answers.

A script is a function that talks to a broker through a `Session`. It is run against each broker by itself,
with the ids that this broker gave it, and the session keeps a transcript of all answers. What must differ is
made equal before anything is compared, and never more than that:

- an id (topic, producer, session, cluster) becomes its number in the order of appearance, so that two ids
  that were equal or different stay so;
- a time, an address, a folder or an amount of disk space becomes a mark, while Kafka's `-1` for none stays;
- a text for people becomes a mark: where Kafka explains an error the other must, in words of its own, and it
  may explain more;
- records become a description of their batches, and lists whose order means nothing are sorted.

`compare` walks two transcripts and names every field that is not equal.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.schema import ZERO_UUID, Request, Response, Struct
from ottla.records.batch import iter_batches, read_records
from tests.support.wire import CLOSED, Answer, Closed, WireClient

# Fields whose values are made up by the broker: only their equality counts.
IDS: Final = {
    "topic_id",
    "producer_id",
    "session_id",
    "cluster_id",
    "replica_directory_id",
    "voter_directory_id",
    "next_topic_id",
}
# Fields that tell of the time, the machine or the load.
VARYING: Final = {
    "host",
    "port",
    "throttle_time_ms",
    "log_append_time_ms",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "last_timestamp",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "finalized_features_epoch",
    "broker_epoch",
}
# Fields whose wording is the broker's own.
TEXTS: Final = {"error_message", "batch_index_error_message", "documentation"}
# What tells the elements of a list apart; a list of structs with one of these is sorted by it.
KEYS: Final = (
    "name",
    "topic",
    "topic_name",
    "resource_name",
    "config_name",
    "feature",
    "partition_index",
    "partition_id",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "replica_id",
    "api_key",
)
# Answers in which the order of the elements is part of the answer.
ORDERED: Final = {"FetchResponse", "DescribeTopicPartitionsResponse"}

SETTLE_TIMEOUT_S: Final = 15.0
SETTLE_INTERVAL_S: Final = 0.01

UNSET: Final = (-1, None, "", ZERO_UUID)
LONGEST_VALUE: Final = 64
MARK: Final = "<varies>"
TEXT_MARK: Final = "<text>"

Plain: TypeAlias = Any
T = TypeVar("T", bound=Response)
Script: TypeAlias = Callable[["Session"], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer: where in the script, in which version, and what it says."""

    label: str
    version: int
    answer: Plain


@dataclass(slots=True)
class Session:
    """A script's conversation with one broker."""

    address: str
    # Keeps the wording of messages, for people who study a transcript.
    with_texts: bool = False
    entries: list[Entry] = field(default_factory=list)
    _client: WireClient = field(init=False)
    _ids: dict[tuple[str, object], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._client = WireClient(self.address)

    @staticmethod
    def versions(kind: type[Request]) -> range:
        """All versions that Apache Kafka serves of this request."""
        api = API[kind.API_KEY]
        return range(api.min_version, api.max_version + 1)

    def ask(
        self,
        label: str,
        request: Request,
        version: int | None = None,
        *,
        edit: Callable[[Any], None] | None = None,
        hide: Iterable[str] = (),
    ) -> Any:
        """Sends a request and keeps the answer in the transcript; also returns it, unchanged.

        `edit` may take out of a copy what has nothing to do with the script, such as other topics; `hide`
        names more fields that vary.
        """
        version = API[request.API_KEY].max_version if version is None else version
        answer = self._client.ask(request, version)
        self.note(label, version, answer, edit=edit, hide=hide)
        return answer

    def receive(self, label: str, request: Request, version: int) -> None:
        """Keeps the answer to a request that was sent before."""
        frame = self._client.receive_frame()
        answer = CLOSED if frame is None else read_response(API[request.API_KEY], version, frame)[1]
        self.note(label, version, answer)

    @contextlib.contextmanager
    def another(self) -> Iterator[Session]:
        """A second connection to the same broker, whose answers are not kept."""
        session = Session(self.address)
        try:
            yield session
        finally:
            session.close()

    def note(
        self,
        label: str,
        version: int,
        answer: Answer,
        *,
        edit: Callable[[Any], None] | None = None,
        hide: Iterable[str] = (),
    ) -> None:
        """Keeps an answer that came in some other way."""
        plain = self._plain_answer(answer, edit, frozenset(hide))
        self.entries.append(Entry(label, version, plain))

    def get(self, request: Request, kind: type[T], version: int | None = None) -> T:
        """Sends a request whose answer only sets the scene and is not compared."""
        return self._client.get(
            request, API[request.API_KEY].max_version if version is None else version, kind
        )

    def until(
        self, request: Request, kind: type[T], done: Callable[[T], bool], version: int | None = None
    ) -> T:
        """Repeats a request until its answer satisfies `done`: changes reach a broker a little later."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not done(answer := self.get(request, kind, version)):
            assert time.monotonic() < deadline, f"still {answer!r} after {SETTLE_TIMEOUT_S} s"
            time.sleep(SETTLE_INTERVAL_S)
        return answer

    @property
    def client(self) -> WireClient:
        """The connection itself, for what a request object cannot say."""
        return self._client

    def close(self) -> None:
        self._client.close()

    def _plain_answer(
        self, answer: Answer, edit: Callable[[Any], None] | None, hide: frozenset[str]
    ) -> Plain:
        if isinstance(answer, Closed):
            return str(CLOSED)
        name = type(answer).__name__
        if edit is not None:
            edit(answer := _copy(answer))
        return {
            name: _Normalizer(self._ids, hide, ordered=name in ORDERED, texts=self.with_texts).struct(answer)
        }


def run_script(script: Script, address: str, *, with_texts: bool = False) -> list[Entry]:
    """The transcript of a script run against the broker at `address`."""
    session = Session(address, with_texts)
    try:
        script(session)
    finally:
        session.close()
    return session.entries


@dataclass(frozen=True, slots=True)
class Difference:
    where: str
    expected: Plain
    actual: Plain

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected!r}, got {self.actual!r}"


def compare(
    expected: Sequence[Entry], actual: Sequence[Entry], *, allowed: Iterable[str] = ()
) -> list[Difference]:
    """Every field in which two transcripts differ, but for those whose place matches an allowed pattern."""
    differences = []
    for index in range(max(len(expected), len(actual))):
        if index >= len(expected) or index >= len(actual):
            longer = expected[index] if index < len(expected) else actual[index]
            differences.append(
                Difference(f"entry {index}", len(expected), f"{len(actual)} entries, at {longer.label}")
            )
            break
        first, second = expected[index], actual[index]
        where = f"{first.label} v{first.version}"
        if (first.label, first.version) != (second.label, second.version):
            differences.append(Difference(f"entry {index}", where, f"{second.label} v{second.version}"))
            break
        differences.extend(_walk(where, first.answer, second.answer))
    patterns = tuple(allowed)
    return [each for each in differences if not any(fnmatch.fnmatch(each.where, one) for one in patterns)]


def render(entries: Iterable[Entry]) -> str:
    """A transcript for people, one field a line."""
    lines = []
    for entry in entries:
        lines.append(f"== {entry.label} v{entry.version}")
        lines.extend(_lines(entry.answer, "  "))
    return "\n".join(lines) + "\n"


class _Normalizer:
    """Turns one answer into plain data in which only what must be equal is left."""

    def __init__(
        self, ids: dict[tuple[str, object], str], hide: frozenset[str], *, ordered: bool, texts: bool
    ) -> None:
        self._ids = ids
        self._hide = hide
        self._texts = texts
        self._ordered = ordered

    def struct(self, value: Struct) -> dict[str, Plain]:
        plain: dict[str, Plain] = {}
        for each in value.FIELDS:
            content = getattr(value, each.name)
            plain[each.name] = (
                self._records(content) if each.kind == "records" else self._field(each.name, content)
            )
        if value.unknown_tags:
            plain["unknown_tags"] = sorted(value.unknown_tags)
        return plain

    def _field(self, name: str, value: object) -> Plain:
        if name in self._hide:
            return MARK
        if isinstance(value, Struct):
            return self.struct(value)
        if isinstance(value, list):
            items = value if self._ordered else _sorted(value)
            return [self._field(name, each) for each in items]
        if name in IDS:
            none = value in UNSET or (name == "session_id" and value == 0)
            return value if none else self._number(name, value)
        if name in VARYING:
            return value if value in UNSET else MARK
        if name in TEXTS and not self._texts:
            return TEXT_MARK if value else value
        if name.endswith("error_code") and isinstance(value, int):
            return ErrorCode(value).name
        return value.hex() if isinstance(value, bytes | bytearray | memoryview) else value

    def _number(self, name: str, value: object) -> str:
        known = self._ids.get((name, value))
        if known is None:
            number = 1 + sum(1 for other, _ in self._ids if other == name)
            known = self._ids[name, value] = f"<{name} {number}>"
        return known

    def _records(self, value: Any) -> Plain:
        if value is None:
            return None
        data = bytes(value)
        batches = []
        for position, header in iter_batches(data):
            # A checksum covers what the broker chose, so it is compared only where the broker chose nothing.
            own = header.producer_id == -1 and header.timestamp_type == 0
            batches.append(
                {
                    "base_offset": header.base_offset,
                    "last_offset": header.last_offset,
                    "leader_epoch": header.leader_epoch,
                    "attributes": header.attributes,
                    "size": header.size,
                    "count": header.count,
                    "producer_id": self._field("producer_id", header.producer_id),
                    "producer_epoch": header.producer_epoch,
                    "base_sequence": header.base_sequence,
                    "crc": header.crc if own else MARK,
                    "records": [
                        (
                            each.offset,
                            each.timestamp if own else MARK,
                            each.key,
                            _short(each.value),
                            each.headers,
                        )
                        for each in read_records(data, position)
                    ],
                }
            )
        # A part of a batch may follow the last one, where a limit on the size cut it off.
        return batches


def _short(value: bytes | None) -> bytes | str | None:
    if value is None or len(value) <= LONGEST_VALUE:
        return value
    return f"<{len(value)} bytes, {hashlib.sha256(value).hexdigest()[:16]}>"


def _copy(answer: Response) -> Response:
    def copied(value: Any) -> Any:
        if isinstance(value, Struct):
            return value.replace(**{each.name: copied(getattr(value, each.name)) for each in value.FIELDS})
        return [copied(each) for each in value] if isinstance(value, list) else value

    copy: Response = copied(answer)
    return copy


def _sorted(items: list[Any]) -> list[Any]:
    if items and isinstance(items[0], Struct):
        present = [key for key in KEYS if any(each.name == key for each in items[0].FIELDS)]
        return sorted(items, key=lambda each: [_sort_key(getattr(each, key)) for key in present])
    return items


def _sort_key(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _walk(where: str, expected: Plain, actual: Plain) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in {**expected, **actual}:
            if key in TEXTS and _explained(key, expected, actual):
                continue
            yield from _walk(f"{where}.{key}", expected.get(key), actual.get(key))
    elif isinstance(expected, list) and isinstance(actual, list):
        # Elements are told apart by their keys, so that one that is missing does not shift the others.
        left, right = _by_key(expected), _by_key(actual)
        for key in {**left, **right}:
            if key not in left or key not in right:
                yield Difference(f"{where}[{key}]", left.get(key, "nothing"), right.get(key, "nothing"))
            else:
                yield from _walk(f"{where}[{key}]", left[key], right[key])
    elif expected != actual:
        yield Difference(where, expected, actual)


def _explained(key: str, expected: dict[str, Plain], actual: dict[str, Plain]) -> bool:
    """Whether two texts that are not equal are none the less as good as each other."""
    codes = [name for name in expected if name.endswith("error_code")]
    failed = any(expected[name] != "NONE" for name in codes)
    if failed:
        return actual.get(key) == TEXT_MARK
    return bool(codes) and expected[key] == TEXT_MARK


def _by_key(items: list[Plain]) -> dict[object, Plain]:
    keyed: dict[object, Plain] = {}
    for index, each in enumerate(items):
        names = [str(each[key]) for key in KEYS if key in each] if isinstance(each, dict) else []
        key: object = "/".join(names) if names else index
        keyed[key if key not in keyed else f"{key}#{index}"] = each
    return keyed


def _lines(value: Plain, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, content in value.items():
            if isinstance(content, dict | list) and content:
                yield f"{indent}{key}:"
                yield from _lines(content, indent + "  ")
            else:
                yield f"{indent}{key}: {content!r}"
    elif isinstance(value, list):
        for content in value:
            if isinstance(content, dict):
                nested = list(_lines(content, ""))
                yield f"{indent}- {nested[0]}"
                yield from (f"{indent}  {line}" for line in nested[1:])
            else:
                yield f"{indent}- {content!r}"
    else:
        yield f"{indent}{value!r}"
