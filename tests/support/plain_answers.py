"""Answers of brokers as plain data in which only what must be equal is left.

What must differ between two brokers is made equal, and never more than that:

- an id (topic, producer, session, cluster) becomes its number in the order of appearance, so that two ids
  that were equal or different stay so;
- a time, an address, a folder or an amount of disk space becomes a mark, while Kafka's `-1` for none stays;
- a text for people becomes a mark;
- records become a description of their batches, and lists whose order means nothing are sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from ottla.protocol.schema import ZERO_UUID, Response, Struct
from ottla.records.batch import iter_batches, read_records
from tests.support.wire import CLOSED, Answer, Closed

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
TEXTS: Final = {"error_message", "acknowledge_error_message", "batch_index_error_message", "documentation"}
# What tells the elements of a list apart; a list of structs with one of these is sorted by it.
KEYS: Final = (
    "name",
    "topic",
    "topic_id",
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
    "producer_id",
    "group_id",
    "transactional_id",
    "resource_type",
)
# Answers in which the order of the elements is part of the answer.
ORDERED: Final = {"DescribeTopicPartitionsResponse"}

UNSET: Final = (-1, None, "", ZERO_UUID)
LONGEST_VALUE: Final = 64
MARK: Final = "<varies>"
TEXT_MARK: Final = "<text>"

Plain: TypeAlias = Any


class PlainAnswers:
    """Turns the answers of one broker into plain data; remembers the ids it has seen."""

    def __init__(self, *, with_texts: bool) -> None:
        self._ids: dict[tuple[str, object], str] = {}
        self._with_texts = with_texts

    def know(self, name: str, value: object) -> str:
        """The number of an id, given now if it is new."""
        known = self._ids.get((name, value))
        if known is None:
            number = 1 + sum(1 for other, _ in self._ids if other == name)
            known = self._ids[name, value] = f"<{name} {number}>"
        return known

    def plain(
        self, answer: Answer, *, edit: Callable[[Any], None] | None = None, hide: Iterable[str] = ()
    ) -> Plain:
        """`edit` may change a copy of the answer before; `hide` names more fields that vary."""
        if isinstance(answer, Closed):
            return str(CLOSED)
        name = type(answer).__name__
        if edit is not None:
            edit(answer := _copy(answer))
        if isinstance(answer, FetchResponse):
            answer = _merged(answer)
        form = _Form(self, frozenset(hide), ordered=name in ORDERED, with_texts=self._with_texts)
        return {name: form.struct(answer)}


class _Form:
    """The form of one answer."""

    def __init__(
        self, answers: PlainAnswers, hide: frozenset[str], *, ordered: bool, with_texts: bool
    ) -> None:
        self._answers = answers
        self._hide = hide
        self._ordered = ordered
        self._with_texts = with_texts

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
            return [self._field(name, each) for each in (value if self._ordered else self._sorted(value))]
        if name in IDS:
            none = value in UNSET or (name == "session_id" and value == 0)
            return value if none else self._answers.know(name, value)
        if name in VARYING:
            return value if value in UNSET else MARK
        if name == "heartbeat_interval_ms" and value:
            return MARK  # docs/decisions/0021-heartbeats-of-groups-that-change.md
        if name in TEXTS and not self._with_texts:
            return TEXT_MARK if value else value
        if name.endswith("error_code") and isinstance(value, int):
            return ErrorCode(value).name
        return value.hex() if isinstance(value, bytes | bytearray | memoryview) else value

    def _sorted(self, items: list[Any]) -> list[Any]:
        if not items or not isinstance(items[0], Struct):
            return items
        present = [key for key in KEYS if any(each.name == key for each in items[0].FIELDS)]
        return sorted(items, key=lambda item: self._sort_key({key: getattr(item, key) for key in present}))

    def _sort_key(self, keys: dict[str, Any]) -> list[Any]:
        plain = {name: value for name, value in keys.items() if name not in IDS}
        order: list[Any] = [(value is not None, value) for value in plain.values()]
        # An id counts only where nothing else does: numbering it must not depend on the order.
        if all(value in UNSET for value in plain.values()):
            order += [self._order_of_id(name, keys[name]) for name in sorted(keys.keys() - plain.keys())]
        return order

    def _order_of_id(self, name: str, value: Any) -> Any:
        # Producers' ids are numbers, and every broker gives out larger ones later.
        return value if name == "producer_id" else self._answers.know(name, value)

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


def _merged(answer: FetchResponse) -> FetchResponse:
    """The same answer in one form.

    Kafka puts partitions it knows nothing of behind all others, even where that parts a topic; and without
    records, what was aborted is null or empty according to which limit left none.
    """
    topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
    for each in answer.responses:
        known = topics.setdefault((each.topic, each.topic_id), each.replace(partitions=[]))
        for partition in each.partitions:
            nothing = not partition.records and not partition.aborted_transactions
            known.partitions.append(partition.replace(aborted_transactions=None) if nothing else partition)
    return answer.replace(responses=list(topics.values()))


def _copy(answer: Response) -> Response:
    def copied(value: Any) -> Any:
        if isinstance(value, Struct):
            return value.replace(**{each.name: copied(getattr(value, each.name)) for each in value.FIELDS})
        return [copied(each) for each in value] if isinstance(value, list) else value

    copy: Response = copied(answer)
    return copy
