"""The state of share groups: the five APIs between brokers, and the way to their coordinator."""

from __future__ import annotations

from ottla.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from ottla.protocol.messages.read_share_group_state import ReadShareGroupStateRequest
from ottla.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from ottla.protocol.messages.write_share_group_state import WriteShareGroupStateRequest
from ottla.protocol.names import SharePartitionKey
from tests.kafka.scripts.kit import TIMEOUT_MS, UNKNOWN_ID, make_topic, script
from tests.support import share_state as state
from tests.support.differential import Session
from tests.support.messages import request_of
from tests.support.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE, SHARE

_FIRST_VERSION_OF_BATCHES = 4


def coordinate(session: Session, group: str, topic_id: bytes, partitions: int) -> None:
    """Wait until share partitions have a coordinator that has loaded its state."""
    session.until(
        state.find(group, topic_id, range(partitions)),
        FindCoordinatorResponse,
        lambda answer: all(each.error_code == 0 for each in answer.coordinators),
    )
    session.until(
        state.summary(group, topic_id, range(partitions)),
        ReadShareGroupStateSummaryResponse,
        lambda answer: all(each.error_code == 0 for each in answer.results[0].partitions),
    )


@script
def share_coordinators(session: Session) -> None:
    topic_id = make_topic(session, "share-coordinators")
    coordinate(session, "sharers", topic_id, 1)
    good = SharePartitionKey("sharers", topic_id, 0).coordinator_key
    keys = {
        "a key": good,
        "a group with colons": SharePartitionKey("a:b", topic_id, 1).coordinator_key,
        "a topic that does not exist": SharePartitionKey("sharers", UNKNOWN_ID, 0).coordinator_key,
        "no parts": "sharers",
        "two parts": "sharers:0",
        "no group": good.removeprefix("sharers"),
        "a blank group": " " + good.removeprefix("sharers"),
        "no topic id": "sharers:topic:0",
        "no partition": "sharers:AAAAAAAAAAAAAAAAAAAAAQ:x",
        "an empty key": "",
    }
    for label, key in keys.items():
        for version in session.versions(FindCoordinatorRequest):
            request = FindCoordinatorRequest(key_type=SHARE, coordinator_keys=[key], key=key)
            if version < _FIRST_VERSION_OF_BATCHES:
                request.coordinator_keys = []
            else:
                request.key = ""
            if version > 0:
                session.ask(f"{label} v{version}", request, version, hide=["key"])


@script
def share_states(session: Session) -> None:
    """Every operation, in all versions, on states that are there and are not."""
    topic_id = make_topic(session, "share-states", partitions=4)
    for version in session.versions(WriteShareGroupStateRequest):
        group = f"sharers-{version}"
        coordinate(session, group, topic_id, 4)

        def look(label: str, *, epoch: int = 0, group: str = group) -> None:
            for of in session.versions(ReadShareGroupStateSummaryRequest):
                session.ask(f"{label}: summary v{of}", state.summary(group, topic_id, [0, 1, 2, 3, 4]), of)
            session.ask(f"{label}: read", state.read(group, topic_id, dict.fromkeys(range(5), epoch)), 0)

        def write(
            label: str, *args: object, group: str = group, version: int = version, **fields: int
        ) -> None:
            session.ask(f"{label} v{version}", state.write(group, topic_id, *args, **fields), version)  # type: ignore[arg-type]

        look("nothing")
        write("before it is initialized", 0, (0, 9, ACKNOWLEDGED, 1))
        states = {0: (1, 0), 1: (1, -1), 2: (5, 100), -1: (1, 0), 9: (1, 0)}
        session.ask("initialize", state.initialize(group, topic_id, states))
        look("initialized")
        write("the first", 0, (0, 9, ACKNOWLEDGED, 1), complete=10)
        write("a hole", 0, (20, 29, AVAILABLE, 2), complete=10)
        look("two batches")
        write("it is filled", 0, (10, 19, ACKNOWLEDGED, 1), complete=20)
        write("a part is archived", 0, (22, 24, ARCHIVED, 2), complete=23)
        write("a lower count is nothing", 0, (20, 29, ACKNOWLEDGED, 1), complete=23)
        look("combined")
        write("the start moves into a batch", 0, start=5, complete=15)
        look("cut")
        write("the start moves, and a batch comes", 0, (30, 30, AVAILABLE, 1), start=25, complete=0)
        look("cut again")
        write(
            "overlapping batches in one request", 1, (5, 14, AVAILABLE, 1), (0, 9, ACKNOWLEDGED, 1), start=0
        )
        write("below the start", 2, (90, 109, ACKNOWLEDGED, 1), start=100, state_epoch=5)
        look("more")
        write("an old state epoch", 2, (110, 119, ACKNOWLEDGED, 1), state_epoch=4)
        write("a newer state epoch", 2, (110, 119, ACKNOWLEDGED, 1), state_epoch=6)
        write("no epochs", 2, (120, 129, ACKNOWLEDGED, 1), state_epoch=-1, leader_epoch=-1)
        write("a partition that does not exist", 9, (0, 0, ACKNOWLEDGED, 1))
        write("a negative partition", -2, (0, 0, ACKNOWLEDGED, 1))
        session.ask("an older initialization", state.initialize(group, topic_id, {2: (4, 0)}))
        session.ask("the same initialization", state.initialize(group, topic_id, {2: (5, 7)}))
        look("a new leader", epoch=3)
        look("an old leader", epoch=2)
        write("an old leader writes", 0, (40, 40, ACKNOWLEDGED, 1), leader_epoch=2)
        write("the leader writes", 0, (40, 40, ACKNOWLEDGED, 1), leader_epoch=3)
        look("no leader", epoch=-1)
        session.ask("delete", state.delete(group, topic_id, [0, 2, 3, 9, -1]))
        look("deleted", epoch=3)
        session.ask("delete again", state.delete(group, topic_id, [0]))
        session.ask("initialize again", state.initialize(group, topic_id, {0: (0, 1), 1: (9, 2)}))
        look("initialized again", epoch=3)


@script
def share_states_of_nothing(session: Session) -> None:
    """Requests without a group, a topic or partitions, and of topics that do not exist."""
    topic_id = make_topic(session, "share-states-of-nothing")
    coordinate(session, "sharers", topic_id, 1)
    for group in ("", "sharers"):
        for label, of in (("known", topic_id), ("unknown", UNKNOWN_ID), ("zero", bytes(16))):
            name = f"{group or 'no group'}, {label}"
            session.ask(f"{name}: initialize", state.initialize(group, of, {0: (1, 0)}))
            session.ask(f"{name}: write", state.write(group, of, 0, (0, 0, 2, 1)))
            session.ask(f"{name}: read", state.read(group, of, {0: 0}))
            session.ask(f"{name}: summary", state.summary(group, of, [0]))
            session.ask(f"{name}: delete", state.delete(group, of, [0]))
        for kind in (
            InitializeShareGroupStateRequest,
            WriteShareGroupStateRequest,
            ReadShareGroupStateRequest,
            ReadShareGroupStateSummaryRequest,
            DeleteShareGroupStateRequest,
        ):
            session.ask(f"{group or 'no group'}: {kind.__name__} without topics", kind(group_id=group))
        whole = {"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}
        session.ask(
            f"{group or 'no group'}: a topic without partitions",
            request_of("ReadShareGroupState", group_id=group, topics=[{"topic_id": topic_id}, whole]),
        )


@script
def share_states_of_a_deleted_topic(session: Session) -> None:
    topic_id = make_topic(session, "share-states-deleted")
    coordinate(session, "sharers", topic_id, 1)
    session.ask("initialize", state.initialize("sharers", topic_id, {0: (3, 10)}))
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=TIMEOUT_MS)
    session.get(deletion, DeleteTopicsResponse)
    session.until(
        state.summary("sharers", topic_id, [0]),
        ReadShareGroupStateSummaryResponse,
        lambda answer: answer.results[0].partitions[0].error_code != 0,
    )
    session.ask("initialize after", state.initialize("sharers", topic_id, {0: (3, 10)}))
    session.ask("summary after", state.summary("sharers", topic_id, [0]))
    session.ask("delete after", state.delete("sharers", topic_id, [0]))
