"""What a console knows of a node beyond the protocol: its directories, the state of its logs, its tasks.

A console inside of a node has a `NodeInspector` that asks the node; one that was given data directories reads
their files only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ottla.log.directory.dir_names import dir_name
from ottla.protocol.names import TopicPartition
from ottla.runtime.disk import Disk
from ottla.runtime.tasks import TaskStatus


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A log in memory. `producers` have the fields of `/api/…/files`; None if the log did not need them yet,
    and they are as in its newest snapshot.
    """

    log_start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    recovery_point: int
    producers: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """What a node has counted since its start; None for what it does not count. Requests that wait for data
    are left out.
    """

    bytes_in: float | None = None
    bytes_out: float | None = None
    requests: float | None = None
    request_ms: float | None = None
    """The time that requests took, all together."""
    request_buckets: tuple[tuple[float, float], ...] = ()
    """How many requests took at most so many milliseconds, the last of them infinitely many."""


@dataclass(frozen=True, slots=True)
class ScrubState:
    """What the scrubber of a node has done since its start."""

    passes: int
    progress: float
    """The part of the logs that the pass under way has been through; 1 between two passes."""
    partition: str | None
    """The partition that it is at."""
    last_pass_ms: int | None
    bytes_read: int
    findings: tuple[dict[str, Any], ...]
    """The newest findings, with the fields of `/api/log-dirs`."""


class NodeInspector(Protocol):
    @property
    def node_id(self) -> int | None:
        """The node that it looks into; None if it has directories only."""
        ...

    async def directory_of(self, partition: TopicPartition) -> str | None:
        """The directory of a partition; None if it is not here."""
        ...

    async def state_of(self, partition: TopicPartition) -> PartitionState | None: ...

    async def tasks(self) -> list[TaskStatus] | None:
        """The background tasks of the node; None if there is none."""
        ...

    async def counters(self) -> NodeCounters | None: ...

    async def uptime_ms(self) -> int | None: ...

    async def scrub(self) -> ScrubState | None:
        """None if no scrubber runs."""
        ...


class DataDirectories:
    """The inspector of data directories whose node may be running, or not."""

    node_id: Final = None

    def __init__(self, disk: Disk, directories: Sequence[str]) -> None:
        self._disk: Final = disk
        self._directories: Final = tuple(directories)

    async def directory_of(self, partition: TopicPartition) -> str | None:
        for directory in self._directories:
            path = f"{directory}/{dir_name(partition)}"
            if self._disk.is_dir(path):
                return path
        return None

    async def state_of(self, partition: TopicPartition) -> PartitionState | None:
        return None

    async def tasks(self) -> list[TaskStatus] | None:
        return None

    async def counters(self) -> NodeCounters | None:
        return None

    async def uptime_ms(self) -> int | None:
        return None

    async def scrub(self) -> ScrubState | None:
        return None
