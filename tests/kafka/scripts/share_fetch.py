"""Share fetches: sessions, what is acquired, what may be acknowledged by whom, and what is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.end_txn import EndTxnResponse
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from ottla.protocol.messages.share_fetch import ShareFetchRequest
from tests.kafka.scripts.kit import (
    TIMEOUT_MS,
    UNKNOWN_ID,
    batch_of,
    configure_group,
    fill,
    make_topic,
    produce_request,
    script,
)
from tests.kafka.scripts.share_state import coordinate
from tests.kafka.scripts.transactions import begin, end_transaction, settle
from tests.support import share_state as state
from tests.support.differential import Session

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
BATCH_OPTIMIZED, RECORD_LIMIT = range(2)
# A fetch that is to find something waits this long for it, and so often; one that is not waits this long.
LONG_MS, _ATTEMPTS, SHORT_MS = 500, 60, 50

Acknowledged = tuple[int, int, *tuple[int, ...]]
"""First and last offset, and the types."""


@dataclass
class Member:
    """A member with a share session on the partitions of one topic."""

    session: Session
    group: str
    topic_id: bytes
    name: str = "member"
    version: int = 2
    epoch: int = 0
    partitions: tuple[int, ...] = (0,)

    def request(self, *acknowledged: Acknowledged, partition: int = 0, **fields: Any) -> ShareFetchRequest:
        """A fetch in the next epoch, or in that of `share_session_epoch`."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "max_wait_ms": LONG_MS,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
        }
        named = self.partitions if self.epoch == 0 else (partition,) if acknowledged else ()
        values["topics"] = [
            fetching.FetchTopic(
                topic_id=self.topic_id,
                partitions=[
                    fetching.FetchPartition(
                        partition_index=index,
                        acknowledgement_batches=[_fetch_batch(*each) for each in acknowledged],
                    )
                    for index in named
                ],
            )
        ][: len(named)]
        return ShareFetchRequest(**{**values, **fields})

    def fetch(self, label: str, *acknowledged: Acknowledged, **fields: Any) -> Any:
        """Fetch what there is. A state that is not loaded yet, or a release that is not persisted yet, may
        make a broker answer with nothing first.
        """
        for _ in range(_ATTEMPTS):
            request = self.request(*acknowledged, **fields)
            answer = self.session.get(request, fetching.ShareFetchResponse, self.version)
            self.epoch += 1
            if answer.responses or answer.error_code or request.share_session_epoch < 0:
                break
            acknowledged = ()
        self.session.note(label, self.version, answer)
        return answer

    def look(self, label: str, *acknowledged: Acknowledged, **fields: Any) -> Any:
        """Fetch where there may be nothing."""
        request = self.request(*acknowledged, **{"max_wait_ms": SHORT_MS, **fields})
        answer = self.session.ask(label, request, self.version)
        self.epoch += 1
        return answer

    def acknowledgement(self, *acknowledged: Acknowledged, **fields: Any) -> ShareAcknowledgeRequest:
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "topics": [
                acknowledging.AcknowledgeTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=fields.pop("partition", 0),
                            acknowledgement_batches=[_batch(*each) for each in acknowledged],
                        )
                    ],
                )
            ],
        }
        return ShareAcknowledgeRequest(**{**values, **fields})

    def acknowledge(self, label: str, *acknowledged: Acknowledged, **fields: Any) -> None:
        """Acknowledge, and go to the next epoch."""
        self.session.ask(label, self.acknowledgement(*acknowledged, **fields), self.version)
        self.epoch += 1

    def persisted(self, label: str) -> None:
        """Note what the share coordinator knows."""
        self.session.ask(f"{label}: state", state.read(self.group, self.topic_id, {0: 0}), 0)
        self.session.ask(f"{label}: summary", state.summary(self.group, self.topic_id, [0]), 1)

    def warm_up(self) -> None:
        """Have the broker load the state of the partitions: a fetch that comes first may find none loaded."""
        request = self.request(max_records=0, max_wait_ms=1_000)
        self.session.get(request, fetching.ShareFetchResponse, self.version)

    def close(self) -> None:
        self.session.get(
            self.acknowledgement(share_session_epoch=-1, topics=[]), acknowledging.ShareAcknowledgeResponse
        )


def _fetch_batch(first: int, last: int, *types: int) -> fetching.AcknowledgementBatch:
    return fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


def _batch(first: int, last: int, *types: int) -> acknowledging.AcknowledgementBatch:
    return acknowledging.AcknowledgementBatch(
        first_offset=first, last_offset=last, acknowledge_types=list(types)
    )


def begin_share(
    session: Session, name: str, *sizes: int, partitions: int = 1, start: int = 0, group: str | None = None
) -> bytes:
    """Make a topic with batches of some sizes, and the state of a group for it."""
    topic_id = make_topic(session, name, partitions=partitions)
    for partition in range(partitions):
        base = 0
        for size in sizes:
            values = [f"{base + index}".encode() for index in range(size)]
            fill(session, name, batch_of(*values), partition=partition)
            base += size
    initialize(session, group or name, topic_id, partitions, start)
    return topic_id


def initialize(session: Session, group: str, topic_id: bytes, partitions: int = 1, start: int = 0) -> None:
    coordinate(session, group, topic_id, partitions)
    states = dict.fromkeys(range(partitions), (1, start))
    made = session.get(state.initialize(group, topic_id, states), InitializeShareGroupStateResponse)
    assert not any(each.error_code for each in made.results[0].partitions), made


def configure(session: Session, group: str, **configs: str) -> None:
    """Set configurations of a group."""
    configure_group(session, group, {name.replace("_", "."): value for name, value in configs.items()})


@script
def share_fetch_errors(session: Session) -> None:
    session.know("topic_id", UNKNOWN_ID)
    for version in session.versions(ShareFetchRequest):
        name = f"share-fetch-errors-{version}"
        topic_id = begin_share(session, name, 3)
        member = Member(session, name, topic_id, version=version)

        def ask(label: str, *acknowledged: Acknowledged, member: Member = member, **fields: Any) -> None:
            fields = {"max_wait_ms": SHORT_MS, **fields}
            session.ask(label, member.request(*acknowledged, **fields), member.version)

        ask("no group", group_id=None)
        ask("no member", member_id=None)
        ask("an empty member", member_id="")
        ask("a long member", member_id="m" * 37)
        ask("no session", share_session_epoch=1)
        ask("no session to end", share_session_epoch=-1)
        ask("a negative epoch", share_session_epoch=-2)
        ask("the first one acknowledges", (0, 0, ACCEPT))
        ask("a group without state", group_id="share-fetch-stateless", max_wait_ms=2_000)
        unknown = fetching.FetchTopic(
            topic_id=UNKNOWN_ID, partitions=[fetching.FetchPartition(partition_index=0)]
        )
        far = fetching.FetchTopic(
            topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=each) for each in (7, -1)]
        )
        ask("an unknown topic", member_id="other", topics=[unknown])
        ask("unknown partitions", member_id="other", topics=[far])
        ask("no partitions", member_id="other", topics=[])
        ask("a topic without partitions", member_id="other", topics=[fetching.FetchTopic(topic_id=topic_id)])
        ask("no records", member_id="none", max_records=0)
        ask("no bytes", member_id="none", max_bytes=0)
        member.fetch("begin")
        ask("the epoch again", share_session_epoch=0)
        ask("an epoch too far", share_session_epoch=2)
        ask("with an unknown topic", share_session_epoch=1, topics=[unknown])
        ask("which it keeps", share_session_epoch=2)
        forgotten = [
            fetching.ForgottenTopic(topic_id=UNKNOWN_ID, partitions=[0]),
            fetching.ForgottenTopic(topic_id=topic_id, partitions=[0, 5]),
        ]
        ask("and forgets", share_session_epoch=3, forgotten_topics_data=forgotten)
        ask("nothing is left", share_session_epoch=4)
        ask("the end", share_session_epoch=-1)
        ask("the end again", share_session_epoch=-1)


@script
def share_acknowledge_errors(session: Session) -> None:
    for version in session.versions(ShareAcknowledgeRequest):
        name = f"share-acknowledge-errors-{version}"
        topic_id = begin_share(session, name, 5, 5, 5)
        member = Member(session, name, topic_id, version=version)

        def ask(label: str, *acknowledged: Acknowledged, member: Member = member, **fields: Any) -> None:
            session.ask(label, member.acknowledgement(*acknowledged, **fields), member.version)

        ask("no group", (0, 0, 1), group_id=None)
        ask("no member", (0, 0, 1), member_id=None)
        ask("a long member", (0, 0, 1), member_id="m" * 37)
        ask("an initial epoch", (0, 0, 1))
        ask("no session", (0, 0, 1), share_session_epoch=1)
        ask("no session to end", (0, 0, 1), share_session_epoch=-1)
        member.fetch("begin", max_records=5, batch_size=5)
        ask("the wrong epoch", (0, 0, 1), share_session_epoch=2)
        ask("the epoch before", (0, 0, 1), share_session_epoch=0)
        for label, *batches in (
            ("a type too high", (0, 0, 5)),
            ("a negative type", (0, 0, -1)),
            ("renew without saying so", (0, 0, RENEW)),
            ("no types", (0, 0)),
            ("too many types", (0, 0, ACCEPT, ACCEPT)),
            ("too few types", (0, 3, ACCEPT, ACCEPT)),
            ("the wrong way round", (3, 0, ACCEPT)),
            ("overlapping batches", (0, 2, ACCEPT), (2, 3, ACCEPT)),
            ("batches out of order", (3, 3, ACCEPT), (0, 0, ACCEPT)),
            ("the same batch twice", (4, 4, ACCEPT), (4, 4, ACCEPT)),
            ("past what is acquired", (5, 5, ACCEPT)),
            ("partly past what is acquired", (3, 7, ACCEPT)),
            ("a good one, and one past it", (0, 0, ACCEPT), (9, 9, ACCEPT)),
            ("mixed with wrong", (0, 1, ACCEPT, 9)),
            ("no batches",),
            ("a negative offset", (-1, 0, ACCEPT)),
        ):
            member.acknowledge(label, *batches)  # type: ignore[arg-type]
        member.acknowledge("an unknown partition", (0, 0, ACCEPT), partition=9)
        member.acknowledge("an unknown topic", (0, 0, ACCEPT), topics=_other_topic(UNKNOWN_ID))
        member.acknowledge("no topics", topics=[])
        member.acknowledge("accept one", (1, 1, ACCEPT))
        member.acknowledge("accept them again", (0, 1, ACCEPT))
        member.acknowledge("accept one again, and another", (1, 2, ACCEPT))
        member.acknowledge("reject one in the middle", (3, 3, REJECT))
        member.acknowledge("accept it", (3, 3, ACCEPT))
        member.acknowledge("accept around it", (2, 4, ACCEPT))
        other = Member(session, name, topic_id, "other", version)
        other.fetch("the other begins", max_records=5, batch_size=5)
        other.acknowledge("what another holds", (2, 2, ACCEPT))
        member.acknowledge("what the other holds", (5, 9, ACCEPT))
        member.acknowledge("part of what the other holds", (6, 7, ACCEPT))
        member.acknowledge("its own, and the other's", (2, 2, ACCEPT), (5, 5, ACCEPT))
        other.acknowledge("a part", (6, 6, ACCEPT))
        member.acknowledge("a part of the other's again", (7, 7, ACCEPT))
        member.persisted("in the end")
        # What the end of a session releases is released after its answer.
        third = Member(session, name, topic_id, "third", version)
        ask("the end", (2, 2, RELEASE), share_session_epoch=-1)
        third.fetch("what the first had", max_records=1, batch_size=1)
        other.acknowledge("the other's end", share_session_epoch=-1, topics=[])
        third.fetch("what the other had", max_records=1, batch_size=1)
        third.persisted("after all")


def _other_topic(topic_id: bytes) -> list[acknowledging.AcknowledgeTopic]:
    part = acknowledging.AcknowledgePartition(acknowledgement_batches=[_batch(0, 0, ACCEPT)])
    return [acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[part])]


@script
def share_deliveries(session: Session) -> None:
    """What is acquired in each mode, by batches of the log and limits, and again after it was released."""
    for version in session.versions(ShareFetchRequest):
        for mode in (BATCH_OPTIMIZED, RECORD_LIMIT)[:version]:
            name = f"share-deliveries-{version}-{mode}"
            topic_id = begin_share(session, name, 5, 1, 4, 10, 2)
            fields: dict[str, Any] = {} if version == 1 else {"share_acquire_mode": mode}
            member = Member(session, name, topic_id, version=version)
            member.fetch("three", max_records=3, batch_size=2, **fields)
            member.fetch("the next three", max_records=3, batch_size=2, **fields)
            member.fetch("seven more", max_records=7, batch_size=3, **fields)
            member.fetch("the rest", max_records=100, batch_size=1, **fields)
            member.look("nothing", **fields)
            member.acknowledge("release some", (2, 3, RELEASE), (6, 6, RELEASE), (10, 13, RELEASE))
            member.persisted("released")
            member.fetch("one again", max_records=1, **fields)
            member.fetch("more again", max_records=4, **fields)
            member.look("all again", max_wait_ms=300, **fields)
            member.look("nothing again", **fields)
            member.acknowledge("by record", (0, 3, ACCEPT, REJECT, RELEASE, GAP), (5, 6, RELEASE, ACCEPT))
            member.persisted("by record")
            member.fetch("released ones", **fields)
            member.look("accept while fetching", (2, 2, ACCEPT), (4, 5, ACCEPT), **fields)
            member.persisted("accepted")
            # Apache Kafka takes these only when the time is over.
            member.look("release while fetching", (7, 9, RELEASE), max_wait_ms=500, **fields)
            member.look("an invalid type while fetching", (7, 7, 9), **fields)
            member.look("what is done while fetching", (6, 6, ACCEPT), **fields)
            member.look("what it does not hold while fetching", (21, 22, ACCEPT), **fields)
            member.look("another partition while fetching", (6, 6, ACCEPT), partition=3, **fields)
            member.acknowledge("everything else", (7, 21, ACCEPT))
            member.persisted("done")
            member.look("nothing is left", **fields)
            member.close()


@script
def share_delivery_limit(session: Session) -> None:
    """A record that is released again and again is archived; what is delivered with it gets less and less."""
    name = "share-delivery-limit"
    topic_id = begin_share(session, name, 8, 8)
    member = Member(session, name, topic_id)
    for attempt in range(1, 4):
        taken = member.fetch(f"attempt {attempt}")
        member.acknowledge(f"release {attempt}", *_released(taken))
        member.persisted(f"release {attempt}")
    for attempt in range(4, 40):
        taken = member.look(f"attempt {attempt}", max_wait_ms=500)
        if not taken.responses or not taken.responses[0].partitions[0].acquired_records:
            break
        member.acknowledge(f"release {attempt}", *_released(taken))
    member.persisted("archived")
    member.close()


def _released(taken: fetching.ShareFetchResponse) -> list[Acknowledged]:
    acquired = taken.responses[0].partitions[0].acquired_records if taken.responses else []
    return [(each.first_offset, each.last_offset, RELEASE) for each in acquired]


@script
def share_sessions(session: Session) -> None:
    """Two members on several partitions: what they add and forget, and what their end releases."""
    name = "share-sessions"
    topic_id = begin_share(session, name, 3, 3, partitions=3)
    Member(session, name, topic_id, "early", partitions=(0, 1, 2)).warm_up()
    first = Member(session, name, topic_id, "first", partitions=(0, 1))
    second = Member(session, name, topic_id, "second", partitions=(1, 2))
    first.fetch("first begins", max_records=4)
    second.fetch("second begins", max_records=100)
    first.look("first goes on", max_records=100)
    added = fetching.FetchTopic(topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=2)])
    first.look("first adds", topics=[added])
    first.look("first has the same")
    first.look(
        "first forgets",
        forgotten_topics_data=[fetching.ForgottenTopic(topic_id=topic_id, partitions=[0])],
    )
    first.acknowledge("of a forgotten partition", (0, 5, ACCEPT))
    second.acknowledge("second ends", (0, 0, ACCEPT), partition=2, share_session_epoch=-1)
    first.fetch("what second had", max_records=100)
    second.epoch = 0
    second.look("second begins again", topics=[fetching.FetchTopic(topic_id=topic_id)])
    first.fetch("first ends with a fetch", share_session_epoch=-1)
    first.persisted("in the end")


@script
def share_acknowledgements_of_nothing(session: Session) -> None:
    """Partitions that are named without anything to acknowledge, beside others and alone."""
    for version in session.versions(ShareAcknowledgeRequest):
        name = f"share-acknowledgements-of-nothing-{version}"
        topic_id = begin_share(session, name, 5, partitions=3)
        all_of_them = (0, 1, 2)
        Member(session, name, topic_id, "early", version, partitions=all_of_them).warm_up()
        member = Member(session, name, topic_id, version=version, partitions=all_of_them)
        taken: set[int] = set()
        while len(taken) < len(all_of_them):  # Apache Kafka may answer with some of them
            answer = session.get(member.request(), fetching.ShareFetchResponse, version)
            member.epoch += 1
            taken |= {each.partition_index for topic in answer.responses for each in topic.partitions}

        def acknowledge(label: str, *named: Sequence[Acknowledged], member: Member = member) -> None:
            """What is acknowledged of the first partition, of the second and so on."""
            partitions = [
                acknowledging.AcknowledgePartition(
                    partition_index=index, acknowledgement_batches=[_batch(*each) for each in batches]
                )
                for index, batches in enumerate(named)
            ]
            topic = acknowledging.AcknowledgeTopic(topic_id=member.topic_id, partitions=partitions)
            member.acknowledge(label, topics=[topic])

        def acknowledge_in_a_fetch(
            label: str, *named: Sequence[Acknowledged], member: Member = member
        ) -> None:
            partitions = [
                fetching.FetchPartition(
                    partition_index=index, acknowledgement_batches=[_fetch_batch(*each) for each in batches]
                )
                for index, batches in enumerate(named)
            ]
            member.look(label, topics=[fetching.FetchTopic(topic_id=member.topic_id, partitions=partitions)])

        acknowledge("of one", ())
        acknowledge("of all", (), (), ())
        acknowledge("of one beside another", ((0, 0, ACCEPT),), ())
        acknowledge("of the first beside another", (), ((0, 0, ACCEPT),), ())
        acknowledge("of one beside a wrong one", ((9, 9, ACCEPT),), ())
        acknowledge("of one beside an invalid one", ((0, 0, 9),), ())
        acknowledge("of one beside one that there is not", (), (), (), ((0, 0, ACCEPT),))
        acknowledge("of one that there is not", (), (), (), ())
        acknowledge_in_a_fetch("of one in a fetch", ())
        acknowledge_in_a_fetch("of one beside another in a fetch", ((1, 1, ACCEPT),), ())
        acknowledge_in_a_fetch("of one beside a wrong one in a fetch", ((9, 9, ACCEPT),), ())
        member.close()


@script
def share_renewals(session: Session) -> None:
    name = "share-renewals"
    topic_id = begin_share(session, name, 4, 4)
    member = Member(session, name, topic_id)
    member.fetch("begin", max_records=4)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    member.acknowledge("renew", (0, 1, RENEW), is_renew_ack=True)
    member.acknowledge("renew and accept", (0, 3, RENEW, ACCEPT, RENEW, RELEASE), is_renew_ack=True)
    member.acknowledge("accept, and say renew", (0, 0, ACCEPT), is_renew_ack=True)
    member.acknowledge("renew what is accepted", (0, 0, RENEW), is_renew_ack=True)
    member.persisted("renewed")
    member.look("renew with a fetch", (2, 2, RENEW), is_renew_ack=True, **nothing)
    member.fetch("renew with a fetch of something", (2, 2, RENEW), is_renew_ack=True)
    # It was refused before it counted.
    member.epoch -= 1
    member.fetch("renew with a fetch, without saying so", (2, 2, RENEW), max_wait_ms=SHORT_MS)
    member.look("a renewal of nothing", is_renew_ack=True, **nothing)
    member.acknowledge("the rest", (2, 2, ACCEPT))
    configure(session, name, share_renew_acknowledge_enable="false")
    member.look("go on")
    member.acknowledge("renewals are not enabled", (4, 4, RENEW), is_renew_ack=True)
    member.acknowledge("nor with others", (4, 7, ACCEPT, RENEW, ACCEPT, ACCEPT), is_renew_ack=True)
    member.persisted("not renewed")
    member.close()


@script
def share_of_a_log_that_is_cut(session: Session) -> None:
    """The start of the log passes what is in delivery."""
    name = "share-cut"
    topic_id = begin_share(session, name, 5, 5, 5)
    member = Member(session, name, topic_id)
    member.fetch("begin", max_records=5, batch_size=5)
    _delete_records(session, name, 3)
    member.acknowledge("across the start", (0, 4, ACCEPT))
    member.persisted("across the start")
    member.fetch("the next", max_records=5, batch_size=5)
    _delete_records(session, name, 10)
    member.fetch("beyond", max_records=5, batch_size=5)
    member.acknowledge("below the start", (5, 9, ACCEPT))
    member.acknowledge("what is left", (10, 14, ACCEPT))
    member.persisted("what is left")
    member.close()


def _delete_records(session: Session, topic: str, offset: int) -> None:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
        timeout_ms=TIMEOUT_MS,
    )
    done = session.get(request, DeleteRecordsResponse)
    assert done.topics[0].partitions[0].error_code == 0, done


@script
def share_of_a_deleted_topic(session: Session) -> None:
    """A topic goes while a member has a session, and comes back."""
    name = "share-deleted"
    topic_id = begin_share(session, name, 5)
    member = Member(session, name, topic_id)
    member.fetch("begin")
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=TIMEOUT_MS)
    session.get(deletion, DeleteTopicsResponse)
    session.until(
        MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)]),
        MetadataResponse,
        lambda answer: answer.topics[0].error_code != 0,
    )
    member.acknowledge("what it had", (0, 0, ACCEPT))
    member.look("go on after the deletion")
    again = begin_share(session, name, 2)
    added = fetching.FetchTopic(topic_id=again, partitions=[fetching.FetchPartition(partition_index=0)])
    forgotten = fetching.ForgottenTopic(topic_id=topic_id, partitions=[0])
    member.fetch("the new one", topics=[added], forgotten_topics_data=[forgotten])
    member.close()


def _is_taken(answer: ProduceResponse) -> bool:
    # The transaction before may not be complete yet.
    return answer.responses[0].partition_responses[0].error_code == 0


@script
def share_of_transactions(session: Session) -> None:
    """Aborted, committed and open transactions, for groups of both isolation levels."""
    topic = "share-transactions"
    topic_id = begin_share(session, topic, 2, group="share-uncommitted")
    initialize(session, "share-committed", topic_id)
    configure(session, "share-committed", share_isolation_level="read_committed")
    for transactional_id, ends in (
        ("share-abort", False),
        ("share-commit", True),
        ("share-abort", False),
        ("share-open", None),
    ):
        producer = begin(session, transactional_id)
        batch = batch_of(
            transactional_id.encode(),
            b"second",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        request = produce_request(topic, batch)
        request.transactional_id = transactional_id
        session.until(request, ProduceResponse, _is_taken, 12)
        if ends is not None:
            session.get(end_transaction(transactional_id, producer, commit=ends), EndTxnResponse)
            settle(session, transactional_id)
    fill(session, topic, batch_of(b"last"))
    for group in ("share-uncommitted", "share-committed"):
        member = Member(session, group, topic_id)
        member.fetch("begin", max_records=3, batch_size=1)
        member.fetch("go on", max_records=3, batch_size=1)
        member.look("more")
        member.acknowledge("accept", (0, 1, ACCEPT))
        member.persisted("accepted")
        member.close()
    producer = begin(session, "share-open")
    settle(session, "share-open")
    member = Member(session, "share-committed", topic_id, "late")
    member.fetch("after the last is aborted")
    member.acknowledge("accept again", (4, 7, ACCEPT))
    member.persisted("in the end")
    member.close()
