"""kafka-streams-groups on a group of each broker: it prints the same, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.messages.offset_commit import OffsetCommitResponse
from ottla.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.testing.local_node import LocalNode
from tests.kafka.scripts.groups import commit
from tests.kafka.scripts.kit import batch_of, fill, make_topic
from tests.kafka.scripts.streams_groups import beat, internal, set_up
from tests.support.apache_kafka import ApacheKafka
from tests.support.differential import Session
from tests.support.java_driver import JavaDriver

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUP = "tooled"
TOPIC = "tooled-lines"
STORE = f"{GROUP}-store-changelog"
TOPOLOGY = Topology(
    subtopologies=[
        Subtopology(
            subtopology_id="0",
            source_topics=[TOPIC],
            state_changelog_topics=[internal(STORE, **{"cleanup.policy": "compact"})],
        )
    ]
)
DESCRIPTIONS = [
    (*kind, *verbose)
    for kind in ((), ("--offsets",), ("--members",), ("--state",))
    for verbose in ((), ("--verbose",))
]
WHILE_ACTIVE = (
    ("--list",),
    ("--list", "--state"),
    ("--list", "--state", "stable,notready"),
    ("--list", "--state", "empty"),
    *(("--describe", "--group", GROUP, *words) for words in DESCRIPTIONS),
    ("--describe", "--group", f"{GROUP}-none"),
    ("--describe", "--all-groups", "--state"),
    ("--reset-offsets", "--group", GROUP, "--input-topic", TOPIC, "--to-earliest", "--execute"),
    ("--delete-offsets", "--group", GROUP, "--input-topic", TOPIC),
    ("--delete", "--group", GROUP),
)
WHILE_EMPTY = (
    *(("--describe", "--group", GROUP, *words) for words in DESCRIPTIONS),
    *(
        ("--reset-offsets", "--group", GROUP, "--all-input-topics", *how, execute)
        for execute, *how in (
            ("--dry-run", "--to-earliest"),
            ("--execute", "--to-latest"),
            ("--execute", "--shift-by", "-1"),
            ("--dry-run", "--to-current"),
            ("--execute", "--to-datetime", "2020-01-01T00:00:00.000"),
            ("--execute", "--to-offset", "2"),
        )
    ),
    ("--reset-offsets", "--group", GROUP, "--input-topic", f"{TOPIC}:1", "--to-earliest", "--execute"),
    ("--reset-offsets", "--group", GROUP, "--input-topic", "tooled-none", "--to-earliest", "--dry-run"),
    ("--describe", "--group", GROUP),
    ("--delete-offsets", "--group", GROUP, "--input-topic", TOPIC),
    ("--delete-offsets", "--group", GROUP, "--all-input-topics"),
    ("--describe", "--group", GROUP),
    ("--delete", "--group", GROUP, "--delete-internal-topic", STORE),
    ("--delete", "--group", GROUP),
    ("--list",),
)


class Members:
    """Two members of the group, with fixed ids: the second waits for tasks of the first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._epochs: dict[str, int] = {}

    def beat(self, name: str, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = beat(GROUP, name, self._epochs.get(name, 0), **fields)
        response = self._session.get(request, StreamsGroupHeartbeatResponse)
        assert response.error_code == 0, response
        self._epochs[name] = response.member_epoch
        return response

    def join(self, topic_id: bytes) -> None:
        slow = {"topology": TOPOLOGY, "rebalance_timeout_ms": 1_000_000}
        self.beat("a", **slow, user_endpoint=Endpoint(host="here", port=80))
        self.beat("b", **slow)
        fields = {"member_id": "a", "generation_id_or_member_epoch": self._epochs["a"]}
        self._session.get(commit(GROUP, TOPIC, topic_id, **fields), OffsetCommitResponse, 9)

    def stay(self) -> None:
        """The tool takes a while for each command: without heartbeats the sessions would end."""
        for name in "ab":
            self.beat(name)

    def leave(self) -> None:
        for name in "ab":
            self._session.get(beat(GROUP, name, -1), StreamsGroupHeartbeatResponse)


def printed(bootstrap: str, driver: JavaDriver) -> list[str]:
    """All that the tool prints, by command."""
    session = Session(bootstrap)
    topic_id = make_topic(session, TOPIC, partitions=2)
    make_topic(session, STORE, partitions=2)
    for partition in (0, 1):
        fill(session, TOPIC, batch_of(b"one", b"two", b"three"), partition=partition)
    set_up(session, GROUP)
    members = Members(session)
    members.join(topic_id)
    run = _runner(bootstrap, driver)
    lines = []
    for words in WHILE_ACTIVE:
        members.stay()
        lines.append(run(*words))
    members.leave()
    lines += [run(*words) for words in WHILE_EMPTY]
    session.close()
    return lines


def _runner(bootstrap: str, driver: JavaDriver) -> Callable[..., str]:
    def run(*words: str) -> str:
        result = driver.tool(TOOL, "--bootstrap-server", bootstrap, *words, check=False)
        text = result.text.replace(bootstrap, "ADDRESS")
        lines = {" ".join(line.split()) for line in text.splitlines() if not line.startswith("\tat ")}
        if GROUP not in words:  # other tests have other groups
            lines = {line for line in lines if GROUP in line}
        shown = sorted(lines - {""})
        return "\n".join([f"> {' '.join(words)}: {result.exit_code}", *shown])

    return run


def test_the_tool_prints_the_same_of_both_brokers(
    apache_kafka: ApacheKafka, ottla: LocalNode, java_driver: JavaDriver
) -> None:
    expected = printed(apache_kafka.bootstrap, java_driver)
    actual = printed(ottla.bootstrap_servers, java_driver)
    different = [
        f"{mine}\n--- Apache Kafka:\n{theirs}"
        for mine, theirs in zip(actual, expected, strict=True)
        if mine != theirs
    ]
    assert not different, "\n\n".join(different)
