"""What the metadata log needs of the driver that orders and stores its records.

The driver of a quorum is `ottla.raft.driver`. The one of the legacy mode, in which the records are stored as
znodes, is `ottla.zookeeper.driver`. Both commit records in the order in which the active controller appended
them, and have at most one active controller for each epoch; everything above is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ottla.protocol.schema import Request as WireRequest
from ottla.protocol.schema import Response as WireResponse
from ottla.raft.driver.kafka_raft_client import QuorumDescription
from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.quorum_state import RaftStatus
from ottla.raft.snapshot import SnapshotContent, SnapshotId
from ottla.raft.voters import Voter
from ottla.runtime.address import Address


class MetadataSnapshots(Protocol):
    """The snapshots of the records; those of a quorum are files."""

    @property
    def ids(self) -> Sequence[SnapshotId]: ...

    @property
    def newest(self) -> SnapshotId | None: ...

    def read(self, id: SnapshotId) -> SnapshotContent: ...

    def write(self, id: SnapshotId, batches: Iterable[bytes]) -> None: ...

    def add(self, id: SnapshotId) -> None: ...

    def remove(self, id: SnapshotId) -> None: ...


class MetadataRecordStore(Protocol):
    """The batches of records that this node has, and the snapshots that stand for those before them."""

    @property
    def dir(self) -> str:
        """Where they are, for messages."""
        ...

    @property
    def snapshots(self) -> MetadataSnapshots: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def end(self) -> OffsetAndEpoch: ...

    def batches(self, start: int, end: int | None = None) -> Iterable[bytes]: ...

    def on_snapshot_written(self, id: SnapshotId) -> None: ...

    def trim(self) -> None: ...

    def release(self) -> None: ...


class MetadataLogDriver(Protocol):
    """It tells its listener, a `RaftListener`, of elections, commits and snapshots."""

    failure: BaseException | None

    @property
    def local(self) -> Voter: ...

    @property
    def status(self) -> RaftStatus: ...

    @property
    def epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_address(self) -> Address | None: ...

    def start(self) -> None: ...

    def append(self, batch: bytes) -> int: ...

    async def handle(
        self, message: WireRequest, version: int | None = None, listener: str | None = None
    ) -> WireResponse: ...

    def describe(self) -> QuorumDescription | None: ...

    def describe_missing_leader(self, voters: str) -> str: ...

    def is_followed_since(self, since_ns: int) -> bool: ...

    @property
    def is_confirmed(self) -> bool: ...

    def upgrade_kraft_version(self, kraft_version: int, *, validate_only: bool) -> None: ...

    def check_usable(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    async def resign(self, timeout_ms: int) -> None: ...

    async def close(self) -> None: ...
