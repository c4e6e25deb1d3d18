"""The next step of one member of a streams group towards its target tasks (`CurrentAssignmentBuilder`).

A member first gives up the tasks that are no longer its own, and stays in its epoch until it confirms that.
Then it moves to the target's epoch and takes the free tasks; the others it gets when they are released. An
active task is free when no process has it as an active task, and the member's own process not in another
role; a standby or warm-up task when the member's own process does not have it in any role. So state is never
opened twice in a process, and a partition is never processed by two members at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ottla.coordinator.group.streams.streams_group import (
    NO_TASKS,
    StreamsGroup,
    StreamsGroupMember,
    StreamsMemberState,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
    TasksWithEpochs,
)
from ottla.protocol.errors import ErrorCode, KafkaError

_Unreleased: TypeAlias = Callable[[str, int], bool]
_NONE: Final[Mapping[int, int]] = {}


@dataclass(slots=True)
class _Difference:
    """A member's tasks of one role compared with its target."""

    kept: dict[str, frozenset[int]]
    revoking: dict[str, frozenset[int]]
    free: dict[str, frozenset[int]]
    unreleased: bool = False


@dataclass(frozen=True, slots=True)
class TaskReconciliation:
    group: StreamsGroup
    member: StreamsGroupMember
    target_epoch: int
    target: TasksTuple
    owned: TasksTuple | None
    """The tasks that the member says it owns; None if it does not say."""

    def build(self) -> StreamsGroupMember:
        """The member after its next step."""
        member = self.member
        if member.state is StreamsMemberState.STABLE:
            if member.epoch == self.target_epoch:
                return member
            return self._compute_next_assignment(member.epoch)
        if member.state is StreamsMemberState.UNREVOKED_TASKS:
            if self._may_own(member.revoking):
                return member
            return self._compute_next_assignment(member.epoch + 1)
        if member.state is StreamsMemberState.UNKNOWN:
            if self.owned is None or not self.owned.is_empty:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. "
                    "The member must abandon all its tasks and rejoin.",
                )
            return self._compute_next_assignment(self.target_epoch)
        return self._compute_next_assignment(member.epoch)

    def _may_own(self, revoking: TasksTupleWithEpochs) -> bool:
        """Whether the member may still own any of these."""
        return self.owned is None or revoking.has_any_of(self.owned)

    def _compute_next_assignment(self, epoch: int) -> StreamsGroupMember:
        """Revoke first, in `epoch`; if nothing is left to revoke, move on to the target."""
        assigned, target = self.member.assigned, self.target
        current = {id: frozenset(tasks) for id, tasks in assigned.active.items()}
        active = _compare(current, target.active, self._is_unreleased_active)
        standby = _compare(assigned.standby, target.standby, self._is_unreleased)
        warmup = _compare(assigned.warmup, target.warmup, self._is_unreleased)
        kept = TasksTupleWithEpochs(_with_epochs(active.kept, assigned.active), standby.kept, warmup.kept)
        revoking = TasksTupleWithEpochs(
            _with_epochs(active.revoking, assigned.active), standby.revoking, warmup.revoking
        )
        if not revoking.is_empty and self._may_own(revoking):
            return self._with(StreamsMemberState.UNREVOKED_TASKS, epoch, kept, revoking)
        free = TasksTupleWithEpochs(
            {id: dict.fromkeys(sorted(tasks), self.target_epoch) for id, tasks in active.free.items()},
            standby.free,
            warmup.free,
        )
        unreleased = active.unreleased or standby.unreleased or warmup.unreleased
        state = StreamsMemberState.UNRELEASED_TASKS if unreleased else StreamsMemberState.STABLE
        return self._with(state, self.target_epoch, kept.merge(free), NO_TASKS)

    def _is_unreleased_active(self, subtopology_id: str, partition: int) -> bool:
        return (
            subtopology_id,
            partition,
        ) in self.group.active_processes or self.group.is_held_by_process(
            subtopology_id, partition, self.member.process_id
        )

    def _is_unreleased(self, subtopology_id: str, partition: int) -> bool:
        process = self.member.process_id
        return self.group.active_processes.get(
            (subtopology_id, partition)
        ) == process or self.group.is_held_by_process(subtopology_id, partition, process)

    def _with(
        self,
        state: StreamsMemberState,
        epoch: int,
        assigned: TasksTupleWithEpochs,
        revoking: TasksTupleWithEpochs,
    ) -> StreamsGroupMember:
        return replace(
            self.member,
            state=state,
            epoch=epoch,
            previous_epoch=self.member.epoch,
            assigned=assigned,
            revoking=revoking,
        )


def _compare(current: Tasks, target: Tasks, is_unreleased: _Unreleased) -> _Difference:
    result = _Difference({}, {}, {})
    for id in sorted(current.keys() | target.keys()):
        have, wanted = current.get(id, frozenset()), target.get(id, frozenset())
        missing = sorted(wanted - have)
        free = frozenset(partition for partition in missing if not is_unreleased(id, partition))
        result.unreleased |= len(free) < len(missing)
        for into, partitions in (
            (result.kept, have & wanted),
            (result.revoking, have - wanted),
            (result.free, free),
        ):
            if partitions:
                into[id] = partitions
    return result


def _with_epochs(tasks: Tasks, known: TasksWithEpochs) -> TasksWithEpochs:
    return {
        id: {partition: known.get(id, _NONE)[partition] for partition in sorted(partitions)}
        for id, partitions in tasks.items()
    }
