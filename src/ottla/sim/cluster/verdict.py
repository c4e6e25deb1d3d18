"""The checks at the end of a run: the journal of the clients against the committed history.

- No acknowledged record is lost: with acks=all never, with acks=1 only if the leader changed.
- No record of an idempotent or transactional producer is duplicated, and each of its sessions is in order.
- A transaction is visible as a whole or not at all, and in accordance with the response to its producer.
- A group has read every record, and its committed offsets are not below the confirmed ones.
- In consume-transform-produce, each record is copied exactly once, and the offsets of the group agree with
  the copies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.journal import (
    GroupHistory,
    Journal,
    OperationState,
    PartitionKey,
    SentRecord,
    original_of,
)

Offsets = Mapping[str, Mapping[PartitionKey, int]]
"""The committed offsets at the end, by group."""


def verdict(checker: ClusterChecker, journal: Journal, committed: Offsets) -> Iterator[str]:
    """The broken guarantees, one line for each."""
    yield from _check_lost(checker, journal)
    yield from _check_duplicated(checker, journal)
    yield from _check_order(checker, journal)
    yield from _check_transactions(checker, journal)
    for group in journal.groups.values():
        offsets = committed.get(group.name)
        if offsets is not None:
            yield from _check_group(checker, group, offsets)
            if group.copies_to is not None:
                yield from _check_copies(checker, group, offsets)


def _values(checker: ClusterChecker, topic: str, partition: int) -> Counter[bytes]:
    history = checker.history(topic, partition)
    entries = () if history is None else history.entries.values()
    return Counter(entry.value for entry in entries if entry.value is not None)


def _by_partition(checker: ClusterChecker, sent: list[SentRecord]) -> dict[PartitionKey, list[SentRecord]]:
    found: dict[PartitionKey, list[SentRecord]] = defaultdict(list)
    for record in sent:
        if record.topic not in checker.unclean:
            found[record.topic, record.partition].append(record)
    return found


def _check_lost(checker: ClusterChecker, journal: Journal) -> Iterator[str]:
    for (topic, partition), records in _by_partition(checker, journal.sent).items():
        values = _values(checker, topic, partition)
        lost = [
            record
            for record in records
            if record.state is OperationState.DONE
            and record.value not in values
            and _is_promised(checker, record)
        ]
        if lost:
            first = lost[0]
            yield (
                f"{len(lost)} acknowledged records of {topic}-{partition} are lost, among them "
                f"{first.value!r}, written with acks={first.acks} at {first.offset}"
            )


def _is_promised(checker: ClusterChecker, record: SentRecord) -> bool:
    if record.acks == -1:
        return True
    return record.acks == 1 and checker.leader_epoch(record.topic, record.partition) == record.leader_epoch


def _check_duplicated(checker: ClusterChecker, journal: Journal) -> Iterator[str]:
    careful = [record for record in journal.sent if record.idempotent]
    for (topic, partition), records in _by_partition(checker, careful).items():
        values = _values(checker, topic, partition)
        twice = [record.value for record in records if values[record.value] > 1]
        if twice:
            yield f"{len(twice)} records of {topic}-{partition} are duplicated, among them {twice[:3]}"


def _check_order(checker: ClusterChecker, journal: Journal) -> Iterator[str]:
    careful = [record for record in journal.sent if record.idempotent]
    for (topic, partition), records in _by_partition(checker, careful).items():
        history = checker.history(topic, partition)
        if history is None:
            continue
        places = {record.value: (record.session, record.number) for record in records}
        last: dict[str, int] = {}
        for entry in history.entries.values():
            place = places.get(entry.value or b"")
            if place is None:
                continue
            session, number = place
            if number < last.get(session, -1):
                yield f"{entry.value!r} of {history.name} comes after number {last[session]} of its session"
                return
            last[session] = number


def _check_transactions(checker: ClusterChecker, journal: Journal) -> Iterator[str]:
    visible: dict[PartitionKey, set[bytes | None]] = {}
    for transaction in journal.transactions:
        shown = hidden = 0
        for record in transaction.records:
            key = (record.topic, record.partition)
            if key not in visible:
                history = checker.history(*key)
                visible[key] = set() if history is None else {entry.value for entry in history.visible()}
            if record.value in visible[key]:
                shown += 1
            else:
                hidden += 1
        if transaction.state is OperationState.DONE and hidden:
            yield f"{hidden} of {shown + hidden} records of {transaction.name} are missing; it was committed"
        elif transaction.state in (OperationState.FAILED, OperationState.OPEN) and shown:
            yield f"{shown} records of {transaction.name} are visible; it was {_fate(transaction.state)}"
        elif shown and hidden:
            yield f"{transaction.name} is torn: {shown} of its records are visible, {hidden} are not"


def _fate(state: OperationState) -> str:
    return "aborted" if state is OperationState.FAILED else "never committed"


def _check_group(
    checker: ClusterChecker, group: GroupHistory, offsets: Mapping[PartitionKey, int]
) -> Iterator[str]:
    for partition, offset in sorted(offsets.items()):
        if not group.may_be(partition, offset):
            yield (
                f"group {group.name} has committed {offset} of {partition[0]}-{partition[1]}, and "
                f"{group.acknowledged(partition)} was confirmed before"
            )
    for partition, commits in sorted(group.commits.items()):
        if partition not in offsets and any(commit.state is OperationState.DONE for commit in commits):
            yield f"group {group.name} has lost its confirmed offset of {partition[0]}-{partition[1]}"
    for topic, index in sorted(offsets):
        history = checker.history(topic, index)
        if history is None or topic in checker.unclean:
            continue
        below = offsets[topic, index]
        entries = history.visible() if group.read_committed else list(history.entries.values())
        missed = [
            entry
            for entry in entries
            if entry.offset < below and entry.offset not in group.read[topic, index]
        ]
        if missed:
            yield (
                f"group {group.name} committed past {len(missed)} records of {history.name} that it has not "
                f"read, among them {missed[0]!r}"
            )


def _check_copies(
    checker: ClusterChecker, group: GroupHistory, offsets: Mapping[PartitionKey, int]
) -> Iterator[str]:
    """Check that each record below the committed offset is copied exactly once, and none above it."""
    assert group.copies_to is not None
    copies: Counter[bytes | None] = Counter()
    for written in checker.histories_of(group.copies_to):
        copies.update(original_of(group, entry.value or b"") for entry in written.visible())
    for (topic, index), offset in sorted(offsets.items()):
        history = checker.history(topic, index)
        if history is None:
            continue
        for entry in history.visible():
            count = copies[entry.value]
            wanted = 1 if entry.offset < offset else 0
            if count != wanted:
                yield (
                    f"{entry!r} of {history.name} was copied {count} times; group {group.name} has "
                    f"committed {offset}, so it should be {wanted}"
                )
                return
