"""The sticky task assignor of streams groups, as in Kafka 4.3 (`StickyTaskAssignor`).

A task stays with the member that had it as an active task in the last target, or goes to one that had it as a
standby task, as long as the member is below its share; the others go to the process with the least load per
member, and in it to the member with the fewest tasks. Standby tasks follow in the same way, never in a
process that has the task already. The assignor gives no warm-up tasks.

Invariants: each task is active in one member; a process has a task once at most.

All members and processes are sorted before they are walked, so that the same group gives the same assignment
on every broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from ottla.coordinator.group.streams.internal_topic_manager import ConfiguredSubtopology
from ottla.coordinator.group.streams.streams_group import Tasks, TasksTuple

ASSIGNOR_NAME: Final = "sticky"
NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"


_Task: TypeAlias = tuple[str, int]
"""The id of a subtopology and a partition."""


class _ByLoad:
    """Processes, the one with the least load first; of those with equal loads the one that was used last is
    the last.
    """

    __slots__ = ("_count", "_heap")

    def __init__(self, processes: Mapping[str, _Process]) -> None:
        self._heap: list[tuple[float, int, _Process]] = []
        self._count = 0
        for process in processes.values():
            self.push(process)

    def push(self, process: _Process) -> None:
        self._count += 1
        heapq.heappush(self._heap, (process.load, self._count, process))

    def pop(self) -> _Process | None:
        return heapq.heappop(self._heap)[2] if self._heap else None


class _Process:
    """The members of one process and their tasks."""

    __slots__ = ("_count", "active", "counts", "standby", "tasks")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # of tasks by member
        self.tasks: set[_Task] = set()
        self.active: dict[str, list[_Task]] = {}
        self.standby: dict[str, list[_Task]] = {}
        self._count = 0

    @property
    def load(self) -> float:
        return self._count / len(self.counts)

    def add_task(self, member_id: str, task: _Task, *, active: bool) -> int:
        """Give a task to a member; how many tasks it has now."""
        self._count += 1
        self.tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, []).append(task)
        self.counts[member_id] += 1
        return self.counts[member_id]

    def add_task_to_least_loaded_member(self, task: _Task, *, active: bool) -> int:
        member_id = min(self.counts, key=lambda member_id: (self.counts[member_id], member_id))
        return self.add_task(member_id, task, active=active)


class _Holder(NamedTuple):
    """A member that had a task in the last target."""

    process: _Process
    member_id: str

    @property
    def tasks(self) -> int:
        return self.process.counts[self.member_id]


class _Quota:
    """The tasks that a member may have while others have fewer: it shrinks as members reach it."""

    __slots__ = ("_members", "_tasks", "per_member")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.per_member = 0
        self._divide()

    def _divide(self) -> None:
        self.per_member = -(-self._tasks // self._members) if self._members else 0

    def on_task_added(self, tasks_of_member: int) -> None:
        if tasks_of_member == self.per_member:
            self._members -= 1
            self._tasks -= tasks_of_member
            self._divide()


class _Assignment:
    __slots__ = ("_active_holders", "_active_quota", "_processes", "_quota", "_replicas", "_standby_holders")

    def __init__(
        self,
        processes_of: Mapping[str, str],
        previous: Mapping[str, TasksTuple],
        active_tasks: int,
        stateful_tasks: int,
        replicas: int,
    ) -> None:
        self._replicas = replicas
        self._processes: dict[str, _Process] = {}
        self._active_holders: dict[_Task, _Holder] = {}
        self._standby_holders: dict[_Task, list[_Holder]] = {}
        self._active_quota = _Quota(active_tasks, len(processes_of))
        self._quota = _Quota(active_tasks + stateful_tasks * replicas, len(processes_of))
        for process_id in sorted(set(processes_of.values())):
            self._processes[process_id] = _Process()
        for member_id in sorted(processes_of):
            process = self._processes[processes_of[member_id]]
            process.counts[member_id] = 0
            holder = _Holder(process, member_id)
            had = previous.get(member_id)
            if had is None:
                continue
            for id, partitions in had.active.items():
                for partition in sorted(partitions):
                    self._active_holders[id, partition] = holder
            for id, partitions in had.standby.items():
                for partition in sorted(partitions):
                    self._standby_holders.setdefault((id, partition), []).append(holder)

    # Active tasks

    def assign_active(self, tasks: list[_Task]) -> None:
        rest = [
            task
            for task in sorted(tasks, key=_by_partition)
            if not self._give_active(task, self._active_holders.get(task))
        ]
        unassigned = [
            task
            for task in rest
            if not self._give_active(task, self._least_loaded_holder(task, unless_held=False))
        ]
        by_load = _ByLoad(self._processes)
        for task in sorted(unassigned):
            process = by_load.pop()
            assert process is not None, "there are members"
            self._on_active_added(process.add_task_to_least_loaded_member(task, active=True))
            by_load.push(process)

    def _give_active(self, task: _Task, holder: _Holder | None) -> bool:
        if holder is None or holder.tasks >= self._active_quota.per_member:
            return False
        self._on_active_added(holder.process.add_task(holder.member_id, task, active=True))
        return True

    def _on_active_added(self, tasks_of_member: int) -> None:
        self._active_quota.on_task_added(tasks_of_member)
        self._quota.on_task_added(tasks_of_member)

    def _least_loaded_holder(self, task: _Task, *, unless_held: bool) -> _Holder | None:
        """The member with the least load of those that had the task as a standby task; with `unless_held`
        none if the process of the first of them has the task by now.
        """
        holders = self._standby_holders.get(task)
        if not holders:
            return None
        found = holders[0]
        load, tasks = found.process.load, found.tasks
        for holder in holders[1:]:
            if (
                holder.process.load < load
                and not (unless_held and task in holder.process.tasks)
                and holder.tasks < tasks
            ):
                found, load, tasks = holder, holder.process.load, holder.tasks
        return None if unless_held and task in holders[0].process.tasks else found

    # Standby tasks

    def assign_standby(self, tasks: list[_Task]) -> None:
        left: list[tuple[_Task, int]] = []
        for task in sorted(tasks, key=_by_partition, reverse=True):
            for replica in range(self._replicas):
                holder = self._active_holders.get(task)
                if holder is None or task in holder.process.tasks or not self._give_standby(task, holder):
                    other = self._least_loaded_holder(task, unless_held=True)
                    if other is None or not self._give_standby(task, other):
                        left.append((task, self._replicas - replica))
                        break
        by_load = _ByLoad(self._processes)
        for task, replicas in sorted(left, reverse=True):
            for _ in range(replicas):
                if not self._give_standby_by_load(task, by_load):
                    break  # each process has the task; more replicas need more processes

    def _give_standby(self, task: _Task, holder: _Holder) -> bool:
        if holder.tasks >= self._quota.per_member:
            return False
        self._quota.on_task_added(holder.process.add_task(holder.member_id, task, active=False))
        return True

    def _give_standby_by_load(self, task: _Task, by_load: _ByLoad) -> bool:
        passed = []
        found = False
        while not found:
            process = by_load.pop()
            if process is None:
                break
            passed.append(process)
            if task not in process.tasks:
                self._quota.on_task_added(process.add_task_to_least_loaded_member(task, active=False))
                found = True
        for process in reversed(passed):
            by_load.push(process)
        return found

    def result(self, processes_of: Mapping[str, str]) -> dict[str, TasksTuple]:
        return {
            member_id: TasksTuple(
                _grouped(self._processes[process_id].active.get(member_id, [])),
                _grouped(self._processes[process_id].standby.get(member_id, [])),
            )
            for member_id, process_id in processes_of.items()
        }


def assign_tasks(
    processes_of: Mapping[str, str],
    previous: Mapping[str, TasksTuple],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    configs: Mapping[str, str],
) -> dict[str, TasksTuple]:
    """The target tasks of each member. `processes_of` has the process of each member, `previous` the last
    target, `configs` the settings of the group.
    """
    replicas = int(configs.get(NUM_STANDBY_REPLICAS, "0"))
    active = [(id, partition) for id, each in subtopologies.items() for partition in range(each.tasks)]
    stateful = [
        (id, partition)
        for id, each in subtopologies.items()
        if each.is_stateful
        for partition in range(each.tasks)
    ]
    assignment = _Assignment(processes_of, previous, len(active), len(stateful), replicas)
    assignment.assign_active(active)
    if replicas > 0:
        assignment.assign_standby(stateful)
    return assignment.result(processes_of)


def _by_partition(task: _Task) -> tuple[int, str]:
    return task[1], task[0]


def _grouped(tasks: list[_Task]) -> Tasks:
    grouped: dict[str, set[int]] = {}
    for id, partition in tasks:
        grouped.setdefault(id, set()).add(partition)
    return {id: frozenset(grouped[id]) for id in sorted(grouped)}
