"""What the committed records of the group coordinator may say about the tasks of a streams group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.protocol.consumer_offsets_records import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
)
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.sim.cluster.streams_checker import StreamsChecker
from ottla.sim.world import World


class Committed:
    """A checker, and the records that it is given."""

    def __init__(self) -> None:
        self.world = World(1)
        self.checker = StreamsChecker(self.world)

    def add(self, member: str, *active: int, revoking: tuple[int, ...] = (), gone: bool = False) -> list[str]:
        """Commit the tasks of a member; the violations so far."""
        value = StreamsGroupCurrentMemberAssignmentValue(
            active_tasks=tasks(*active), active_tasks_pending_revocation=tasks(*revoking)
        )
        key = StreamsGroupCurrentMemberAssignmentKey(group_id="streams", member_id=member)
        record: Any = SimpleNamespace(key=encode_key(key), value=None if gone else encode_value(value, 0))
        self.checker.on_record(record)
        return self.world.violations


def tasks(*partitions: int) -> list[StreamsGroupCurrentMemberAssignmentTaskIds]:
    if not partitions:
        return []
    return [StreamsGroupCurrentMemberAssignmentTaskIds(subtopology_id="0", partitions=list(partitions))]


def test_tasks_move_when_their_member_has_given_them_up() -> None:
    committed = Committed()
    committed.add("a", 0, 1)
    committed.add("a", 0, revoking=(1,))
    committed.add("a", 0)
    assert not committed.add("b", 1)
    assert committed.checker.reason_not_assigned(2) is None


def test_tasks_of_a_member_that_is_gone_are_free() -> None:
    committed = Committed()
    committed.add("a", 0, 1)
    committed.add("a", gone=True)
    assert committed.checker.reason_not_assigned(2) is not None
    assert not committed.add("b", 0, 1)


def test_a_task_is_not_active_in_two_members() -> None:
    committed = Committed()
    committed.add("a", 0, 1)
    assert committed.add("b", 1)


def test_a_task_that_has_still_to_be_given_up_is_not_active_elsewhere() -> None:
    committed = Committed()
    committed.add("a", 0, revoking=(1,))
    assert committed.add("b", 1)
