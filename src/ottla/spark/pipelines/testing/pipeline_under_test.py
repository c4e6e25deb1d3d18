"""The pipeline that a case sends to, runs and looks at; on a node and in directories of that case."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.spark.pipelines.testing.cases import Rows, record_problem
from ottla.spark.pipelines.testing.rows import canonical, compare, record_bytes, timestamp_ms

READ_SECONDS: Final = 60.0
_POLL_MS: Final = 200


class UnexpectedRows(AssertionError):
    """A table or a topic has other rows than the case expects."""


class PipelineUnderTest:
    """Implements `CasePipeline`. `run_pipeline` runs it once; `read_table` returns the rows of a table."""

    def __init__(
        self,
        bootstrap: str,
        run_pipeline: Callable[[], None],
        read_table: Callable[[str], list[dict[str, Any]]],
    ) -> None:
        self.bootstrap_servers = bootstrap
        self._run_pipeline = run_pipeline
        self._read_table = read_table

    def send(self, topic: str, records: Rows) -> None:
        """Write records to a topic, which is created with one partition if it does not exist."""
        with Admin(self.bootstrap_servers) as admin:
            if topic not in {info.name for info in admin.topics.list()}:
                admin.topics.create(topic, partitions=1)
        with Producer(self.bootstrap_servers) as producer:
            sent = []
            for record in records:
                if problem := record_problem(record):
                    raise ValueError(f"{topic}: {problem}")
                sent.append(
                    producer.send_nowait(topic, record_bytes(record, "value"), **_fields_to_send(record))
                )
            for each in sent:
                each.result()

    def run(self) -> None:
        """Run the pipeline once over all records that were sent."""
        self._run_pipeline()

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table; a time is text in UTC."""
        return [canonical(row) for row in self._read_table(name)]

    def topic(self, name: str) -> list[dict[str, Any]]:
        """The committed records of a topic, of all partitions; `value` and `key` are text."""
        return [
            {
                "key": canonical(record.key),
                "value": canonical(record.value),
                "headers": [{"key": key, "value": canonical(value)} for key, value in record.headers],
                "partition": record.partition,
                "timestamp": record.timestamp,
            }
            for record in self.read_topic(name)
        ]

    def expect_table(self, name: str, rows: Rows) -> None:
        """Fail unless the table has these rows, in any order; columns that no row names are not compared."""
        if difference := compare(self._read_table(name), rows):
            raise UnexpectedRows(f"table {name}: {difference.text()}")

    def expect_topic(self, name: str, records: Rows) -> None:
        """Fail unless the topic has these records, in any order; fields that no record here has are not
        compared. Values that are JSON are compared as such.
        """
        found = [_comparable(record) for record in self.topic(name)]
        if difference := compare(found, [_comparable(record) for record in records]):
            raise UnexpectedRows(f"topic {name}: {difference.text()}")

    def read_topic(self, name: str) -> list[Any]:
        """The committed records of a topic as the consumer returns them."""
        with Admin(self.bootstrap_servers) as admin:
            known = {info.name: len(info.partitions) for info in admin.topics.list()}
        if name not in known:
            raise UnexpectedRows(
                f"topic {name} does not exist; there are {', '.join(sorted(known)) or 'none'}"
            )
        found: list[Any] = []
        committed: Consumer[bytes, bytes] = Consumer(
            self.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        everything: Consumer[bytes, bytes] = Consumer(self.bootstrap_servers)
        with everything as ends, committed as consumer:
            partitions = ends.partitions_for(name)
            until = ends.end_offsets(partitions)
            consumer.assign(partitions)
            deadline = time.monotonic() + READ_SECONDS
            while any(consumer.position(each) < until[each] for each in partitions):
                found += consumer.poll(timeout_ms=_POLL_MS)
                if time.monotonic() > deadline:
                    raise UnexpectedRows(
                        f"topic {name}: a transaction is open {READ_SECONDS:.0f} s after the run; readers "
                        "of committed records wait for its end"
                    )
        return found


def _fields_to_send(record: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"key": record_bytes(record, "key")}
    if (headers := record.get("headers")) is not None:
        fields["headers"] = [(str(each["key"]), record_bytes(each, "value")) for each in headers]
    if (partition := record.get("partition")) is not None:
        fields["partition"] = int(partition)
    if (timestamp := record.get("timestamp")) is not None:
        fields["timestamp"] = timestamp_ms(timestamp)
    return fields


def _comparable(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that a case names, in the form in which they are compared."""
    found: dict[str, Any] = {}
    for name in ("key", "value"):
        if name in record or f"{name}_base64" in record:
            found[name] = _parsed(record_bytes(record, name))
    if record.get("headers"):
        found["headers"] = [
            [str(each["key"]), canonical(record_bytes(each, "value"))] for each in record["headers"]
        ]
    if "partition" in record:
        found["partition"] = record["partition"]
    if "timestamp" in record:
        found["timestamp"] = timestamp_ms(record["timestamp"])
    return found


def _parsed(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return canonical(data)
