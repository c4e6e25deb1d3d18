"""Fetch: limits, special cases, epochs and incremental sessions."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.records.batch import Codec
from tests.kafka.scripts.kit import (
    TIMEOUT_MS,
    UNKNOWN_ID,
    batch_of,
    fetch_request,
    fill,
    make_topic,
    script,
)
from tests.support.differential import Session

MAX_INT = 2_147_483_647


@script
def fetch(session: Session) -> None:
    topic_id = make_topic(session, "fetch", partitions=2)
    fill(session, "fetch", batch_of(b"a", b"b"), batch_of(b"c"), batch_of(b"d", None, codec=Codec.LZ4))
    for version in session.versions(FetchRequest):
        for offset in (0, 1, 2, 4, 5):
            session.ask(f"offset {offset}", fetch_request(topic_id, offset, topic="fetch"), version)
        for offset in (6, -1, -2, 2**62):
            session.ask(f"offset {offset}", fetch_request(topic_id, offset, topic="fetch"), version)
        for partition in (1, 2, -1):
            request = fetch_request(topic_id, 0, topic="fetch", partition=partition)
            session.ask(f"partition {partition}", request, version)
        session.ask("unknown topic", fetch_request(UNKNOWN_ID, 0, topic="fetch-none"), version)
        session.ask("read committed", fetch_request(topic_id, 0, topic="fetch", isolation_level=1), version)
        empty = FetchRequest(topics=[], max_wait_ms=0, min_bytes=0)
        session.ask("no topics", empty, version)
        if version >= 13:
            session.ask("no topic id", fetch_request(bytes(16), 0), version)


@script
def fetch_within_limits(session: Session) -> None:
    """At least one batch comes, and then no more than the limits allow."""
    topic_id = make_topic(session, "fetch-limits", partitions=2)
    for partition in (0, 1):
        fill(session, "fetch-limits", *[batch_of(b"x" * 900) for _ in range(4)], partition=partition)

    def ask(label: str, *, max_bytes: int = MAX_INT, sizes: Sequence[int] = (1_000_000, 1_000_000)) -> None:
        wanted = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=size)
            for index, size in enumerate(sizes)
        ]
        request = FetchRequest(
            topics=[FetchTopic(topic_id=topic_id, partitions=wanted)],
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
        )
        session.ask(label, request)

    for max_bytes in (0, 1, 500, 972, 973, 974, 1946, 2500, 5000):
        ask(f"at most {max_bytes}", max_bytes=max_bytes)
    for size in (0, 1, 972, 973, 974, 1946, 2500):
        ask(f"at most {size} of each partition", sizes=(size, size))
    ask("nothing of the first", sizes=(0, 5000))


@script
def fetch_that_waits(session: Session) -> None:
    """A fetch with too little data waits, is woken by an append, and ends with its time."""
    topic_id = make_topic(session, "fetch-wait")
    session.ask("nothing there", fetch_request(topic_id, 0, max_wait_ms=50, min_bytes=1))
    request = fetch_request(topic_id, 0, max_wait_ms=20_000, min_bytes=1)
    session.client.send(request, 18)
    with session.another() as other:
        fill(other, "fetch-wait", batch_of(b"wakes it up"))
    session.receive("woken", request, 18)
    session.ask("enough there", fetch_request(topic_id, 0, max_wait_ms=20_000, min_bytes=50))
    session.ask("too little there", fetch_request(topic_id, 0, max_wait_ms=50, min_bytes=1_000_000))
    session.ask("an error does not wait", fetch_request(topic_id, 99, max_wait_ms=20_000, min_bytes=1_000))
    unknown = fetch_request(UNKNOWN_ID, 0, max_wait_ms=20_000, min_bytes=1_000)
    session.ask("an unknown topic does not wait", unknown)


@script
def fetch_with_epochs(session: Session) -> None:
    topic_id = make_topic(session, "fetch-epochs")
    fill(session, "fetch-epochs", batch_of(b"a"), batch_of(b"b"))
    for version in range(9, 19):
        for epoch in (-1, 0, 1, 7):
            request = fetch_request(topic_id, 0, topic="fetch-epochs", current_leader_epoch=epoch)
            session.ask(f"current epoch {epoch}", request, version)
        if version >= 12:
            for epoch, offset in ((0, 1), (0, 2), (0, 9), (1, 1), (5, 2), (-1, 1)):
                request = fetch_request(topic_id, offset, topic="fetch-epochs", last_fetched_epoch=epoch)
                session.ask(f"last fetched epoch {epoch} at {offset}", request, version)


@script
def fetch_as_a_replica(session: Session) -> None:
    topic_id = make_topic(session, "fetch-replica")
    fill(session, "fetch-replica", batch_of(b"a"))
    for version in range(4, 15):
        for replica_id in (1, 9, -2):
            request = fetch_request(topic_id, 0, topic="fetch-replica", replica_id=replica_id)
            session.ask(f"replica {replica_id}", request, version)
    for version in range(15, 19):
        for replica_id in (1, 9):
            state = ReplicaState(replica_id=replica_id, replica_epoch=-1)
            session.ask(f"replica {replica_id}", fetch_request(topic_id, 0, replica_state=state), version)


@script
def fetch_old_codecs(session: Session) -> None:
    """zstd came with version 10, but a broker no longer looks into the batches it sends to older clients."""
    topic_id = make_topic(session, "fetch-zstd")
    fill(
        session,
        "fetch-zstd",
        batch_of(b"plain"),
        batch_of(b"packed" * 9, codec=Codec.ZSTD),
        batch_of(b"plain"),
    )
    for version in session.versions(FetchRequest):
        for offset in range(3):
            session.ask(f"offset {offset}", fetch_request(topic_id, offset, topic="fetch-zstd"), version)
    set_topic = make_topic(session, "fetch-zstd-topic", configs={"compression.type": "zstd"})
    for version in (9, 10, 18):
        session.ask("topic of zstd", fetch_request(set_topic, 0, topic="fetch-zstd-topic"), version)


@script
def fetch_sessions(session: Session) -> None:
    for version in (7, 11, 12, 13, 18):
        _one_session(session, version)


def _one_session(session: Session, version: int) -> None:
    names = [f"fetch-session-{version}-{each}" for each in ("a", "b")]
    ids = [make_topic(session, name) for name in names]
    fill(session, names[0], batch_of(b"first"))

    def ask(
        label: str,
        session_id: int,
        epoch: int,
        offsets: Sequence[tuple[int, int]] = (),
        forgotten: Sequence[int] = (),
        *,
        partition: int = 0,
    ) -> int:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=[
                FetchTopic(
                    topic=names[index],
                    topic_id=ids[index],
                    partitions=[
                        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=100_000)
                    ],
                )
                for index, offset in offsets
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=names[index], topic_id=ids[index], partitions=[0]) for index in forgotten
            ],
        )
        answer = session.ask(label, request, version)
        assert isinstance(answer, FetchResponse)
        return answer.session_id

    both = [(0, 0), (1, 0)]
    ask("without a session", 0, -1, both)
    made = ask("new session", 0, 0, both)
    ask("nothing new", made, 1)
    ask("first moves on", made, 2, [(0, 1)])
    ask("still nothing", made, 3)
    fill(session, names[1], batch_of(b"news"))
    ask("news", made, 4)
    ask("news again", made, 5)
    ask("second moves on", made, 6, [(1, 1)])
    ask("first is forgotten", made, 7, [], [0])
    fill(session, names[0], batch_of(b"unseen"))
    ask("nothing of the forgotten", made, 8)
    ask("first comes back", made, 9, [(0, 1)])
    ask("out of range", made, 10, [(0, 50)])
    ask("error again", made, 11)
    ask("unknown partition", made, 12, [(0, 0)], partition=7)
    ask("wrong epoch", made, 99)
    ask("epoch repeated", made, 12)
    ask("the right epoch after all", made, 13)
    ask("unknown session", 424_242, 1)
    ask("unknown session, first epoch", 424_242, 0, both)
    ask("unknown session, closed", 424_242, -1, both)
    ask("epoch without a session", 0, 5, both)
    again = ask("replaced", made, 0, both)
    ask("old session", made, 14)
    ask("new one goes on", again, 1)
    ask("closed", again, -1, both)
    ask("after the close", again, 2)
    empty = ask("session of nothing", 0, 0)
    ask("adds to nothing", empty, 1, [(0, 0)])
    if version >= 13:
        session.get(
            DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=ids[1])], timeout_ms=TIMEOUT_MS),
            DeleteTopicsResponse,
        )
        _await_unknown(session, ids[1])
        made = ask("deleted topic in a new session", 0, 0, both)
        ask("deleted topic again", made, 1)


def _await_unknown(session: Session, topic_id: bytes) -> None:
    session.until(
        fetch_request(topic_id, 0),
        FetchResponse,
        lambda answer: answer.responses[0].partitions[0].error_code != 0,
    )
