"""What is checked of a streams group, by the committed records of its coordinator.

No task is active in two members, one that has still to give it up included; and at the end every task is in
a member.
"""

from __future__ import annotations

from ottla.protocol.consumer_offsets_records import (
    RECORDS,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)
from ottla.records._kernel import Record
from ottla.sim.world import World


class StreamsChecker:
    """Which member has which tasks, by the committed records of the group coordinator."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By member: the tasks that it has, and those of them that it has still to give up.
        self._active: dict[str, frozenset[int]] = {}

    def on_record(self, record: Record) -> None:
        """Apply a committed record of `__consumer_offsets`."""
        if record.key is None:
            return
        key, value = RECORDS.decode(record.key, record.value)
        if not isinstance(key, StreamsGroupCurrentMemberAssignmentKey):
            return
        self._active.pop(key.member_id, None)
        if value is None:
            return
        assert isinstance(value, StreamsGroupCurrentMemberAssignmentValue), value
        tasks = frozenset(
            partition
            for each in (*value.active_tasks, *value.active_tasks_pending_revocation)
            for partition in each.partitions
        )
        for other, others in self._active.items():
            if tasks & others:
                self._world.report_violation(
                    f"the streams tasks {sorted(tasks & others)} are active in {key.member_id}, and {other} "
                    "has not given them up"
                )
        self._active[key.member_id] = tasks

    def reason_not_assigned(self, partitions: int) -> str | None:
        """Why the tasks of so many partitions are not all assigned; None if they are."""
        missing = set(range(partitions)).difference(*self._active.values())
        return f"the streams tasks {sorted(missing)} are in no member" if missing else None
