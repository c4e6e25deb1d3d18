"""Transactions: every request of a producer, in order and out of it, by both versions of the protocol."""

from __future__ import annotations

from typing import Any

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.kafka.scripts.kit import batch_of, fetch_request, make_topic, produce_request, script
from tests.support.differential import Session

_READ_COMMITTED = 1
_OF_TRANSACTIONS = 1
_FIRST_VERSION_OF_EPOCHS = 5
# Times of the transaction itself, which no two runs share.
_TIMES = ("transaction_start_time_ms", "last_timestamp")


def find_coordinator(session: Session, transactional_id: str, *, key_type: int = _OF_TRANSACTIONS) -> None:
    session.until(
        FindCoordinatorRequest(key_type=key_type, coordinator_keys=[transactional_id]),
        FindCoordinatorResponse,
        lambda answer: answer.coordinators[0].error_code == 0,
    )


def begin(session: Session, transactional_id: str, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
    find_coordinator(session, transactional_id)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    made = session.until(request, InitProducerIdResponse, lambda answer: answer.error_code == 0)
    session.know("producer_id", made.producer_id)
    return ProducerIdAndEpoch(made.producer_id, made.producer_epoch)


def _add(
    transactional_id: str, producer: ProducerIdAndEpoch, *topics: str, partition: int = 0
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[partition]) for name in topics],
    )


def end_transaction(transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def _write(
    transactional_id: str | None, producer: ProducerIdAndEpoch, topic: str, topic_id: bytes, sequence: int = 0
) -> ProduceRequest:
    batch = batch_of(
        b"value",
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    request = produce_request(topic, batch, topic_id=topic_id)
    request.transactional_id = transactional_id
    return request


def settle(session: Session, transactional_id: str) -> None:
    """Waits until all markers are written."""
    session.until(
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        DescribeTransactionsResponse,
        lambda answer: not answer.transaction_states[0].transaction_state.startswith("Prepare"),
    )


def _describe(session: Session, label: str, transactional_id: str) -> None:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    session.ask(label, request, hide=_TIMES, edit=_sort_partitions)


def _sort_partitions(answer: DescribeTransactionsResponse) -> None:
    for state in answer.transaction_states:
        for topic in state.topics:
            topic.partitions.sort()


def _views(session: Session, label: str, topic_id: bytes) -> None:
    """What consumers of both isolation levels read, and the aborted transactions in the responses."""
    session.ask(f"{label}: all", fetch_request(topic_id, 0))
    session.ask(f"{label}: committed", fetch_request(topic_id, 0, isolation_level=_READ_COMMITTED))


@script
def transactions_of_version_1(session: Session) -> None:
    """Commit, abort, and the same once more, in every version of a client's requests."""
    name = "transactions_of_version_1"
    topic_id = make_topic(session, name)
    producer = begin(session, name)
    for version in range(_FIRST_VERSION_OF_EPOCHS):
        for commit in (True, False):
            how = "commit" if commit else "abort"
            session.ask(f"{how} nothing", end_transaction(name, producer, commit=commit), version)
            session.ask("add", _add(name, producer, name), min(version, 3))
            session.ask("add again", _add(name, producer, name), min(version, 3))
            write = _write(name, producer, name, topic_id, sequence=2 * version + (not commit))
            session.ask("write", write, 7 + version)
            session.ask(how, end_transaction(name, producer, commit=commit), version)
            settle(session, name)
            session.ask(f"{how} again", end_transaction(name, producer, commit=commit), version)
            session.ask(f"not {how}", end_transaction(name, producer, commit=not commit), version)
            _describe(session, how, name)
    _views(session, "end", topic_id)


@script
def transactions_of_version_2(session: Session) -> None:
    """Partitions are added by writing to them, and each end moves the epoch."""
    name = "transactions_of_version_2"
    topic_id = make_topic(session, name)
    producer = begin(session, name)
    session.ask("commit nothing", end_transaction(name, producer, commit=True))
    for version in (12, 13):
        for commit in (True, False, False):
            how = "commit" if commit else "abort"
            session.ask("write", _write(name, producer, name, topic_id), version)
            session.ask("write more", _write(name, producer, name, topic_id, 1), version)
            session.ask("write again", _write(name, producer, name, topic_id), version)
            _describe(session, "open", name)
            ended = session.ask(how, end_transaction(name, producer, commit=commit))
            settle(session, name)
            session.ask(f"{how} again", end_transaction(name, producer, commit=commit))
            if commit:
                session.ask("abort instead", end_transaction(name, producer, commit=False))
            session.ask("late write", _write(name, producer, name, topic_id, 2), version)
            producer = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
            _describe(session, how, name)
    for _ in range(2):
        ended = session.ask("abort nothing", end_transaction(name, producer, commit=False))
        settle(session, name)
        producer = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
    _views(session, "end", topic_id)


@script
def transactions_of_strangers(session: Session) -> None:
    """Unknown transactional ids, other producer ids, old and future epochs, unknown partitions."""
    name = "transactions_of_strangers"
    topic_id = make_topic(session, name)
    producer = begin(session, name)
    strangers = {
        "other id": ProducerIdAndEpoch(producer.id + 1_000_000, producer.epoch),
        "future epoch": ProducerIdAndEpoch(producer.id, producer.epoch + 5),
        "negative epoch": ProducerIdAndEpoch(producer.id, -1),
    }
    for who, stranger in strangers.items():
        session.know("producer_id", stranger.id)
        for version in session.versions(EndTxnRequest):
            session.ask(f"{who} ends", end_transaction(name, stranger, commit=False), version)
        for version in range(4):
            session.ask(f"{who} adds", _add(name, stranger, name), version)
        for version in (10, 11, 12):
            session.ask(f"{who} writes", _write(name, stranger, name, topic_id), version)
    for version in session.versions(EndTxnRequest):
        session.ask("unknown id ends", end_transaction("unknown", producer, commit=True), version)
        session.ask("empty id ends", end_transaction("", producer, commit=True), version)
    for version in range(4):
        session.ask("unknown id adds", _add("unknown", producer, name), version)
        session.ask("empty id adds", _add("", producer, name), version)
        session.ask("unknown topic", _add(name, producer, name, "no-such-topic"), version)
        session.ask("unknown partition", _add(name, producer, name, partition=7), version)
        session.ask("internal topic", _add(name, producer, "__consumer_offsets"), version)
        session.ask("no topics", _add(name, producer), version)
    for version in (9, 10, 11, 12):
        session.ask("unknown id writes", _write("unknown", producer, name, topic_id), version)
        session.ask("no id writes", _write(None, producer, name, topic_id), version)
    for version in (9, 10, 11):
        session.ask("writes without adding", _write(name, producer, name, topic_id), version)
    _views(session, "end", topic_id)


@script
def transactional_init_producer_id(session: Session) -> None:
    """New producers, producers that go on, and ones that were replaced."""
    name = "transactional_init_producer_id"
    topic_id = make_topic(session, name)
    find_coordinator(session, name)

    def init(label: str, version: int | None = None, **fields: Any) -> Any:
        request = InitProducerIdRequest(
            **{"transactional_id": name, "transaction_timeout_ms": 60_000, **fields}
        )
        return session.ask(label, request, version)

    for timeout_ms in (0, -1, 900_001):
        for version in session.versions(InitProducerIdRequest):
            init(f"timeout {timeout_ms}", version, transaction_timeout_ms=timeout_ms)
    session.until(
        InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000),
        InitProducerIdResponse,
        lambda answer: answer.error_code == 0,
    )
    for version in session.versions(InitProducerIdRequest):
        init("again", version)
    made = init("mine")
    mine = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    for version in (3, 4, 5):
        went_on = init("go on", version, **mine)
        init("go on, repeated", version, **mine)
        init("old epoch", version, producer_id=made.producer_id, producer_epoch=0)
        init("future epoch", version, producer_id=made.producer_id, producer_epoch=went_on.producer_epoch + 3)
        init("other id", version, producer_id=made.producer_id + 1_000_000, producer_epoch=0)
        mine = {"producer_id": went_on.producer_id, "producer_epoch": went_on.producer_epoch}
    producer = ProducerIdAndEpoch(mine["producer_id"], mine["producer_epoch"])
    session.ask("write", _write(name, producer, name, topic_id))
    init("while one is open")
    settle(session, name)
    _describe(session, "aborted", name)
    init("go on after the abort", **mine)
    init("now")
    session.ask("write of the replaced", _write(name, producer, name, topic_id, 1))
    session.ask("end of the replaced", end_transaction(name, producer, commit=True))
    _views(session, "end", topic_id)


@script
def transactions_verified_by_brokers(session: Session) -> None:
    """AddPartitionsToTxn as leaders send it: several transactions at once, verified or added."""
    name = "transactions_verified_by_brokers"
    make_topic(session, name, partitions=3)
    one, two = begin(session, f"{name}-1"), begin(session, f"{name}-2")
    session.ask("add to the first", _add(f"{name}-1", one, name), 3)

    def ask(label: str, version: int, *wanted: tuple[str, ProducerIdAndEpoch, bool, list[int]]) -> None:
        session.ask(
            label,
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=id,
                        producer_id=producer.id,
                        producer_epoch=producer.epoch,
                        verify_only=verify,
                        topics=[AddPartitionsToTxnTopic(name=name, partitions=partitions)],
                    )
                    for id, producer, verify, partitions in wanted
                ]
            ),
            version,
        )

    for version in (4, 5):
        ask("verify", version, (f"{name}-1", one, True, [0]), (f"{name}-2", two, True, [0]))
        ask("verify some", version, (f"{name}-1", one, True, [0, 2]))
        ask("verify unknown partition", version, (f"{name}-1", one, True, [0, 9]))
        ask("verify old", version, (f"{name}-1", ProducerIdAndEpoch(one.id, one.epoch + 1), True, [0]))
        ask("verify other", version, (f"{name}-1", ProducerIdAndEpoch(two.id, one.epoch), True, [0]))
        ask("verify unknown", version, ("unknown", one, True, [0]))
    ask("add", 5, (f"{name}-1", one, False, [1]), (f"{name}-2", two, False, [1, 2]))
    for number in (1, 2):
        _describe(session, f"after adding to {number}", f"{name}-{number}")


@script
def transactions_listed(session: Session) -> None:
    """ListTransactions and DescribeTransactions, with every filter."""
    name = "transactions_listed"
    make_topic(session, name)
    ids = [f"{name}-{number}" for number in range(3)]
    producers = [begin(session, id) for id in ids]
    session.ask("open", _add(ids[1], producers[1], name), 3)
    session.ask("open", _add(ids[2], producers[2], name), 3)
    session.ask("commit", end_transaction(ids[2], producers[2], commit=True), 4)
    settle(session, ids[2])

    def mine(answer: Any) -> None:
        own = [each for each in answer.transaction_states if each.transactional_id.startswith(name)]
        answer.transaction_states = sorted(own, key=lambda each: each.transactional_id)

    for version in session.versions(ListTransactionsRequest):
        filtered: dict[str, dict[str, Any]] = {
            "all": {},
            "by state": {"state_filters": ["Ongoing", "Empty", "Nonsense"]},
            "by unknown state": {"state_filters": ["ongoing"]},
            "by producer": {"producer_id_filters": [producers[0].id, producers[2].id]},
        }
        for label, filters in filtered.items():
            session.ask(label, ListTransactionsRequest(**filters), version, edit=mine)
    for duration_ms in (0, 3_600_000):
        request = ListTransactionsRequest(duration_filter=duration_ms, state_filters=["Ongoing"])
        session.ask(f"longer than {duration_ms}", request, edit=mine)
    for pattern in (f"{name}-[01]", "listed", f".*{ids[0][-3:]}", "", "(", None):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        session.ask(f"by pattern {pattern!r}", request, edit=mine)
    for id in (*ids, "unknown", ""):
        _describe(session, f"describe {id!r}", id)


@script
def transactions_that_hang(session: Session) -> None:
    """A transaction is found by DescribeProducers and ended by an administrator's WriteTxnMarkers."""
    name = "transactions_that_hang"
    topic_id = make_topic(session, name, partitions=2)
    for version in session.versions(WriteTxnMarkersRequest):
        producer = begin(session, f"{name}-{version}")
        session.ask("add", _add(f"{name}-{version}", producer, name), 3)
        session.ask("write", _write(f"{name}-{version}", producer, name, topic_id), 11)
        describe = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0, 1])])
        session.ask("producers", describe, hide=_TIMES)

        def mark(label: str, epoch: int, *, topic: str = name, commit: bool = False, of: int = 0) -> None:
            marker = WritableTxnMarker(
                producer_id=producer.id,  # noqa: B023
                producer_epoch=epoch,
                transaction_result=commit,
                topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                coordinator_epoch=of,
            )
            session.ask(label, WriteTxnMarkersRequest(markers=[marker]), version)  # noqa: B023

        mark("unknown topic", producer.epoch, topic="no-such-topic")
        mark("abort", producer.epoch)
        mark("abort again", producer.epoch)
        mark("newer coordinator", producer.epoch, of=5)
        mark("older coordinator", producer.epoch, of=4)
        mark("newer epoch", producer.epoch + 1, of=5)
        mark("older epoch", producer.epoch, of=5)
        session.ask("producers after", describe, hide=_TIMES)
    session.ask("none", WriteTxnMarkersRequest(), 1)
    _views(session, "end", topic_id)


def _code(answer: TxnOffsetCommitResponse) -> int:
    return answer.topics[0].partitions[0].error_code


def _offsets(session: Session, label: str, name: str) -> None:
    """What the group has committed, for those who mind open transactions and for those who do not."""
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])]
    for stable in (False, True):
        for wanted in (topics, None):
            group = OffsetFetchRequestGroup(group_id=name, topics=wanted)
            request = OffsetFetchRequest(groups=[group], require_stable=stable)
            session.ask(f"{label}, {'all' if wanted is None else 'some'}, stable {stable}", request, 9)


@script
def transactions_with_offsets(session: Session) -> None:
    """AddOffsetsToTxn and TxnOffsetCommit."""
    name = "transactions_with_offsets"
    make_topic(session, name)
    producer = begin(session, name)
    find_coordinator(session, name, key_type=0)

    def add(group: str, who: ProducerIdAndEpoch = producer, id: str = name) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=id, producer_id=who.id, producer_epoch=who.epoch, group_id=group
        )

    def commit(
        group: str, who: ProducerIdAndEpoch = producer, id: str = name, topic: str = name
    ) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            transactional_id=id,
            group_id=group,
            producer_id=who.id,
            producer_epoch=who.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=7, committed_metadata="m"
                        )
                    ],
                )
            ],
        )

    # The partition of the group is being loaded at first.
    session.until(
        commit(name), TxnOffsetCommitResponse, lambda answer: _code(answer) == ErrorCode.INVALID_TXN_STATE, 3
    )
    for version in range(5):
        session.ask("offsets without adding", commit(name), version)
    for version in session.versions(AddOffsetsToTxnRequest):
        session.ask("add", add(name), version)
        session.ask(
            "add with old epoch", add(name, ProducerIdAndEpoch(producer.id, producer.epoch + 1)), version
        )
        session.ask("add to unknown id", add(name, id="unknown"), version)
    for version in range(5):
        session.ask("offsets", commit(name), version)
        session.ask("offsets of unknown topic", commit(name, topic="no-such-topic"), version)
        session.ask(
            "offsets with old epoch",
            commit(name, ProducerIdAndEpoch(producer.id, producer.epoch - 1)),
            version,
        )
    _offsets(session, "while it is open", name)
    session.ask("commit", end_transaction(name, producer, commit=True), 4)
    settle(session, name)
    _offsets(session, "after the commit", name)
    session.ask("offsets, added by themselves", commit(name), 5)
    _describe(session, "open", name)
    _offsets(session, "in the next transaction", name)
    session.ask("abort", end_transaction(name, producer, commit=False), 5)
    settle(session, name)
    _offsets(session, "after the abort", name)
