"""A resident JVM with Kafka's Java client, for tests that need many clients or tools, not a JVM each.

`JavaDriver` runs `java/Driver.java` against a bundle of jars (the newest client with the tools, or an old
client) and speaks lines of JSON with it. One command is under way at a time; a command that fails in Java
raises `JavaDriverError` with the class of the exception and its trace.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.java import CLIENT_TIMEOUT_MS, JavaDriverError, ToolJvm

__all__ = ["Consumed", "ConsumedRecord", "Headers", "JavaDriver", "JavaDriverError", "Message", "SendResult"]


Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A record to produce."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class SendResult:
    """What the broker said to one record: its place, or the exception's class and message."""

    offset: int = -1
    timestamp: int = -1
    error: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a consumer saw of a partition, from its start to the end offset of its isolation level."""

    records: tuple[ConsumedRecord, ...]
    position: int
    beginning_offset: int
    end_offset: int


class JavaDriver(ToolJvm):
    """`java/Driver.java` and its commands."""

    def producer(self, bootstrap: str, **config: str) -> JavaProducer:
        """A producer; configuration names are written with underscores for dots."""
        name = f"producer-{next(self._names)}"
        values = {
            "bootstrap.servers": bootstrap,
            # Only a flush ends a batch, so that a test decides what a batch holds.
            "linger.ms": "60000",
            "batch.size": "1000000",
            "delivery.timeout.ms": "120000",
            **_dotted(config),
        }
        self.call("producer.open", name=name, config=values)
        return JavaProducer(self, name)

    def consume(
        self, bootstrap: str, topic: str, partition: int = 0, *, start: int | None = None, **config: str
    ) -> Consumed:
        """Reads a partition from `start`, or from its beginning, to its end."""
        values = {
            "bootstrap.servers": bootstrap,
            "auto.offset.reset": "none",
            # Closing a consumer waits for the fetch that is under way.
            "fetch.max.wait.ms": "20",
            **_dotted(config),
        }
        answer = self.call(
            "consume",
            config=values,
            topic=topic,
            partition=partition,
            timeout_ms=CLIENT_TIMEOUT_MS,
            start=start,
        )
        records = tuple(
            ConsumedRecord(
                entry["offset"],
                entry["timestamp"],
                entry["timestamp_type"],
                entry["leader_epoch"],
                _decoded(entry["key"]),
                _decoded(entry["value"]),
                tuple((name, _decoded(value)) for name, value in entry["headers"]),
            )
            for entry in answer["records"]
        )
        return Consumed(records, answer["position"], answer["beginning_offset"], answer["end_offset"])


class JavaProducer:
    """One producer inside the JVM; a context manager."""

    def __init__(self, driver: JavaDriver, name: str) -> None:
        self._driver = driver
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def init_transactions(self) -> None:
        self._driver.call("producer.init", name=self._name)

    def begin(self) -> None:
        self._driver.call("producer.begin", name=self._name)

    def commit(self) -> None:
        self._driver.call("producer.commit", name=self._name)

    def abort(self) -> None:
        self._driver.call("producer.abort", name=self._name)

    def send_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Adds consumed offsets, (topic, partition, offset) each, to the transaction."""
        self._driver.call("producer.offsets", name=self._name, group=group, offsets=offsets)

    def try_send(self, messages: Iterable[Message], *, flush_every: int = 0) -> list[SendResult]:
        """Sends and returns all answers, errors included; `flush_every` records make a batch."""
        answer = self._driver.call(
            "producer.send",
            name=self._name,
            flush_every=flush_every,
            records=[_entry(each) for each in messages],
        )
        return [
            SendResult(
                each.get("offset", -1), each.get("timestamp", -1), each.get("error"), each.get("message")
            )
            for each in answer["results"]
        ]

    def send(self, messages: Iterable[Message], *, flush_every: int = 0) -> list[SendResult]:
        """As `try_send`, but an error of the broker's fails the test."""
        results = self.try_send(messages, flush_every=flush_every)
        failed = [each for each in results if each.error is not None]
        if failed:
            raise AssertionError(f"{len(failed)} of {len(results)} records were refused, first {failed[0]}")
        return results

    def close(self, *, timeout_ms: int = 30_000) -> None:
        """Closes the producer; with a timeout of 0 an open transaction is left as a crash would leave it."""
        self._driver.call("producer.close", name=self._name, timeout_ms=timeout_ms)


def _dotted(config: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


def _entry(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "timestamp": message.timestamp,
        "key": _encoded(message.key),
        "value": _encoded(message.value),
        "headers": [[name, _encoded(value)] for name, value in message.headers],
    }


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
