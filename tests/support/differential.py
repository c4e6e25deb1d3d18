"""Two brokers, one script, no difference: what Ottla answers is held against what Apache Kafka answers.

A script is a function that talks to a broker through a `Session`. It is run against each broker by itself,
with the ids that this broker gave it, and the session keeps a transcript of all answers, each in a form that
leaves out what must differ (`plain_answers`). Where Kafka explains an error the other must too, in words of
its own, and it may explain more. `compare` walks two transcripts and names every field that is not equal.
"""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from ottla.protocol.api import API
from ottla.protocol.headers import read_response
from ottla.protocol.schema import Request, Response
from tests.support.newer_apis import versions_of_kafka_4_3
from tests.support.plain_answers import IDS, KEYS, TEXT_MARK, TEXTS, UNSET, Plain, PlainAnswers
from tests.support.wire import CLOSED, Answer, WireClient

SETTLE_TIMEOUT_S: Final = 60.0
SETTLE_INTERVAL_S: Final = 0.01

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
    _answers: PlainAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._client = WireClient(self.address)
        self._answers = PlainAnswers(with_texts=self.with_texts)

    @staticmethod
    def versions(kind: type[Request]) -> range:
        """All versions that Apache Kafka serves of this request."""
        return versions_of_kafka_4_3(API[kind.API_KEY])

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
        version = versions_of_kafka_4_3(API[request.API_KEY])[-1] if version is None else version
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
        self.entries.append(Entry(label, version, self._answers.plain(answer, edit=edit, hide=hide)))

    def get(self, request: Request, kind: type[T], version: int | None = None) -> T:
        """Sends a request whose answer only sets the scene and is not compared."""
        return self._client.get(
            request, versions_of_kafka_4_3(API[request.API_KEY])[-1] if version is None else version, kind
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

    def know(self, name: str, value: object) -> None:
        """Give an id its number now, before it appears in an answer."""
        self._answers.know(name, value)

    @property
    def client(self) -> WireClient:
        """The connection itself, for what a request object cannot say."""
        return self._client

    def close(self) -> None:
        self._client.close()


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


def _walk(where: str, expected: Plain, actual: Plain) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in {**expected, **actual}:
            if key in TEXTS and _explained(key, expected, actual):
                continue
            yield from _walk(f"{where}.{key}", expected.get(key), actual.get(key))
    elif isinstance(expected, list) and isinstance(actual, list):
        # Elements are distinguished by their keys, so that one that is missing does not shift the others.
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
        present = [key for key in KEYS if each.get(key) not in UNSET] if isinstance(each, dict) else []
        # An id names an element only where nothing else does.
        named = [key for key in present if key not in IDS] or present
        key: object = "/".join(str(each[key]) for key in named) if named else index
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
