"""What the files of a metadata log say when it is opened, and by which settings they are kept.

Only what is certain is taken from them: the newest snapshot, the voters of the log, the vote that was given.
What is committed beyond the snapshot is for the quorum to tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.log.loader import MetadataLoader
from ottla.raft.driver.disk_log import DiskLog, DiskLogConfig, LogGap
from ottla.raft.driver.kafka_raft_client import read_election
from ottla.raft.election_state import BadQuorumState, ElectionState
from ottla.raft.membership import VoterSetHistory
from ottla.raft.voters import VoterSet
from ottla.runtime.runtime import Runtime

_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The settings whose names begin with ``metadata.log`` and ``metadata.max``."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    max_retention_bytes: int = 100 * 1024 * 1024
    max_retention_ms: int = 7 * _DAY_MS
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 60 * 60 * 1000

    def on_disk(self) -> DiskLogConfig:
        return DiskLogConfig(
            self.segment_bytes, self.segment_ms, self.max_retention_bytes, self.max_retention_ms
        )


DEFAULT_CONFIG: Final = MetadataLogConfig()


@dataclass(slots=True)
class Loaded:
    log: DiskLog
    membership: VoterSetHistory
    loader: MetadataLoader
    election: ElectionState | None


def load(runtime: Runtime, dir: str, config: MetadataLogConfig, static_voters: VoterSet | None) -> Loaded:
    """What the files say is certain. Blocks: for the pool."""
    log = DiskLog.open(runtime.disk, runtime.clock, runtime.random, dir, config.on_disk())
    try:
        membership, snapshot = log.load(static_voters)
        loader = MetadataLoader(log, snapshot)
        election = read_election(runtime.disk, log.dir)
    except LogGap as error:
        log.release()
        raise StorageError(str(error)) from error
    except BadQuorumState as error:
        log.release()
        raise StorageError(f"{log.dir}/quorum-state: {error}") from error
    except BaseException:
        log.release()
        raise
    return Loaded(log, membership, loader, election)
