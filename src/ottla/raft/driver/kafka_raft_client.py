"""A replica at work: the state machine, its files, its connections and its clock.

Inputs go into the machine at once, and what it asks for is done in order, in one queue. Only writing
``quorum-state`` holds the queue up: whatever rests on a vote leaves this node after the vote is durable.
Syncing the log and receiving snapshots go on beside it. Invariant: nobody outside sees the effect of an
input before what it rests on would survive a power cut.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, TypeVarTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.fitting import leave_out_what_is_newer
from ottla.protocol.schema import Request as WireRequest
from ottla.protocol.schema import Response as WireResponse
from ottla.raft.config import QuorumConfig
from ottla.raft.driver import wire, wire_replies
from ottla.raft.driver.channel import Channel
from ottla.raft.driver.disk_log import DiskLog
from ottla.raft.driver.snapshots import Download
from ottla.raft.effects import (
    Answer,
    Committed,
    Effect,
    Flush,
    InstallSnapshot,
    LeaderChanged,
    Persist,
    Send,
    SnapshotLoaded,
)
from ottla.raft.election_state import FILE_NAME as QUORUM_STATE
from ottla.raft.election_state import ElectionState
from ottla.raft.machine import KafkaRaftMachine
from ottla.raft.membership import VoterSetHistory
from ottla.raft.messages import AskVersions, Reply, VersionsReply
from ottla.raft.progress import ReplicaProgress
from ottla.raft.quorum_state import Now, QuorumState
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import NEVER_MS
from ottla.raft.voters import ReplicaKey, Voter
from ottla.runtime.address import Address
from ottla.runtime.disk import Disk, read_file, write_file
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_NS_PER_MS: Final = 1_000_000


class RaftListener(Protocol):
    """Whoever wants to know what the quorum decides. Calls come in order and must return at once."""

    def committed(self, high_watermark: int) -> None:
        """Everything below is committed, and can be read from the log."""
        ...

    def snapshot_loaded(self, id: SnapshotId) -> None:
        """The log begins anew behind this snapshot."""
        ...

    def leader_changed(self, leader_id: int | None, epoch: int) -> None: ...

    def failed(self, error: BaseException) -> None:
        """This replica cannot go on; the node has to stop."""
        ...


@dataclass(frozen=True, slots=True)
class QuorumReplicaInfo:
    """A replica as its leader sees it; times are of the wall clock, -1 where it was never so."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: list[QuorumReplicaInfo]
    observers: list[QuorumReplicaInfo]


def read_election(disk: Disk, dir: str) -> ElectionState | None:
    """What ``quorum-state`` says; None if there is none. BadQuorumState if it makes no sense."""
    path = posixpath.join(dir, QUORUM_STATE)
    return ElectionState.decode(read_file(disk, path)) if disk.exists(path) else None


class KafkaRaftClient:
    """Make it with a log that was opened and loaded, then :meth:`start` it::

    log = await runtime.pool.run(DiskLog.open, runtime.disk, runtime.clock, runtime.random, dir)
    membership, snapshot = await runtime.pool.run(log.load, static_voters)
    client = KafkaRaftClient(runtime, log, membership, local, cluster_id=..., listener=...)
    client.start()
    """

    def __init__(
        self,
        runtime: Runtime,
        log: DiskLog,
        membership: VoterSetHistory,
        local: Voter,
        listener: RaftListener,
        *,
        cluster_id: str,
        election: ElectionState | None = None,
        config: QuorumConfig | None = None,
        listener_name: str = "CONTROLLER",
        bootstrap: Sequence[Address] = (),
        channel: Channel | None = None,
    ) -> None:
        self._runtime: Final = runtime
        self.log: Final = log
        self._cluster_id: Final = cluster_id
        self._listener: Final = listener
        self._config: Final = config or QuorumConfig()
        self._channel: Final = channel or Channel(runtime.network)
        self.raft: Final = KafkaRaftMachine(
            QuorumState(
                local,
                log,
                membership,
                election=election,
                config=self._config,
                random=runtime.random,
                now=self._now(),
                listener=listener_name,
                bootstrap=bootstrap,
            )
        )
        self._queue: deque[Effect] = deque()
        self._draining = False
        self._persisting = False
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[asyncio.Future[Reply], None] = {}  # requests that are not answered yet
        self._stopped: asyncio.Future[None] | None = None
        self._strangers: set[Address] = set()
        self.failure: BaseException | None = None
        self._closed = False

    def _now(self) -> Now:
        return Now(self._runtime.clock.monotonic_ns() // _NS_PER_MS, self._runtime.clock.wall_ms())

    # Inputs

    def start(self) -> None:
        self.raft.start(self._now())
        self._go_on()

    async def handle(self, message: WireRequest, version: int | None = None) -> WireResponse:
        """Answer a request of the quorum's protocol, in a version or the newest one; KafkaError for an error
        of the response as a whole.
        """
        self.check_usable()
        request = wire.decode_request(message, self._cluster_id)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[answer] = None
        answer.add_done_callback(lambda done: self._answers.pop(done, None))
        self._give(self.raft.receive, answer, request, self._now())
        self._go_on()
        response = wire_replies.encode_reply(message, await answer)
        if version is not None and version < wire.VERSIONS[message.API_KEY]:
            leave_out_what_is_newer(response, version)
        return response

    def append(self, batch: bytes) -> int:
        """Append a batch of this leader's epoch; the offset at which it is committed. KafkaError
        NOT_CONTROLLER if this node does not lead.
        """
        self.check_usable()
        end = self._give(self.raft.append, batch, self._now())
        self._go_on()
        return end

    def upgrade(self, kraft_version: int, *, validate_only: bool) -> None:
        """Raise the version of the quorum, from voters that are configured to those of the log. KafkaError
        INVALID_UPDATE_VERSION says why not.
        """
        self.check_usable()
        now = self._now()
        refusal = self._give(lambda: self.raft.upgrade(kraft_version, now, validate_only=validate_only))
        self._go_on()
        if refusal is not None:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, refusal)

    def describe(self) -> QuorumDescription | None:
        """What DescribeQuorum tells; None if this node does not lead."""
        now = self._now()
        self._give(self.raft.tick, now)
        self._go_on()
        info = self.raft.describe()
        if info is None:
            return None

        def told(progress: ReplicaProgress) -> QuorumReplicaInfo:
            def wall(ms: int) -> int:
                return -1 if ms < 0 else now.wall_ms - (now.ms - ms)

            times = wall(progress.last_fetch_ms), wall(progress.caught_up_ms)
            return QuorumReplicaInfo(progress.key, progress.end_offset, *times)

        voters, observers = [told(each) for each in info.voters], [told(each) for each in info.observers]
        return QuorumDescription(info.leader_id, info.epoch, info.high_watermark, voters, observers)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._give(self.raft.tick, self._now())
        except KafkaError as error:
            self.fail(error)
        self._go_on()

    def _give(self, take: Callable[[*_Ts], _T], *inputs: *_Ts) -> _T:
        """Give the machine an input. If the log cannot be written then, somebody else has to lead, or to
        follow; only who is alone waits until there is room again.
        """
        try:
            return take(*inputs)
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and not (self.log.is_online and self._is_alone):
                self.fail(error)
                self.check_usable()  # whoever asked may ask the next leader
            raise

    @property
    def _is_alone(self) -> bool:
        voters = self.raft.core.membership.voters
        return voters is not None and len(voters.voters) == 1

    def check_usable(self) -> None:
        """KafkaError NOT_CONTROLLER if this replica has failed."""
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"the metadata log cannot be written any more: {self.failure}"
            ) from self.failure

    # Effects

    def _go_on(self) -> None:
        """Queue what the machine asked for, do what can be done, and set the clock for the next time."""
        if self._closed or self.failure is not None:
            return
        self._queue.extend(self.raft.take_effects())
        self._drain()
        self._set_timer()

    def _drain(self) -> None:
        if self._draining or self._persisting:
            return
        self._draining = True
        try:
            while self._queue and not self._persisting and self.failure is None:
                self._perform(self._queue.popleft())
        except Exception as error:
            self.fail(error)
        finally:
            self._draining = False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist():
                if self._queue and isinstance(self._queue[0], Persist):
                    return  # the next one says more
                self._persisting = True
                self._spawn("write quorum-state", self._persist, effect.election)
            case Send():
                self._spawn(f"ask {effect.node_id}", self._exchange, effect)
            case Answer():
                if isinstance(effect.token, asyncio.Future) and not effect.token.done():
                    effect.token.set_result(effect.reply)
            case Flush():
                if not self._flushing:
                    self._flushing = True
                    self._spawn("flush the metadata log", self._flush)
            case InstallSnapshot():
                self._spawn("install a snapshot", self._install, self.log.take_download(effect.id))
            case Committed():
                self._listener.committed(effect.high_watermark)
            case SnapshotLoaded():
                self._listener.snapshot_loaded(effect.id)
            case LeaderChanged():
                self._listener.leader_changed(effect.leader_id, effect.epoch)

    def _spawn(self, name: str, work: Callable[[*_Ts], Awaitable[None]], *args: *_Ts) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, *args), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[*_Ts], Awaitable[None]], *args: *_Ts) -> None:
        try:
            await work(*args)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    async def _persist(self, election: ElectionState) -> None:
        path = posixpath.join(self.log.dir, QUORUM_STATE)
        version = 1 if self.raft.core.membership.kraft_version >= 1 else 0
        await self._runtime.pool.run(write_file, self._runtime.disk, path, election.encode(version))
        self._persisting = False
        self._go_on()

    async def _flush(self) -> None:
        """Sync until everything appended is on disk. One sync covers all that came while the last one ran."""
        try:
            while (plan := self.log.prepare_flush()) is not None:
                await self._runtime.pool.run(self.log.run_flush, plan)
                self.log.complete_flush(plan)
                if self.log.durable_end >= self.log.end.offset:
                    break
                self.raft.flushed(self.log.durable_end, self._now())
                self._go_on()
        finally:
            self._flushing = False
        self.raft.flushed(self.log.durable_end, self._now())
        self._go_on()

    async def _install(self, download: Download) -> None:
        usable = await self._runtime.pool.run(self.log.finish_download, download)
        self.raft.snapshot_ready(download.id, self._now(), usable=usable)
        self._go_on()

    async def _exchange(self, effect: Send) -> None:
        refused = False
        reply: Reply | None = None
        timeout_ms = self._config.request_timeout_ms
        try:
            if isinstance(effect.request, AskVersions):
                told = await self._channel.api_versions(effect.address, timeout_ms=timeout_ms)
                reply = VersionsReply(*wire.supported_kraft_versions(told))
            else:
                message = wire.encode_request(effect.request, self._cluster_id)
                newest = wire.VERSIONS[message.API_KEY]
                response = await self._channel.ask(effect.address, message, newest, timeout_ms=timeout_ms)
                reply = wire_replies.decode_reply(response)
        except KafkaError as error:
            if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._tell_of_stranger(effect.address)
            reply = wire.error_reply(effect.request, error.code, self.raft.core.epoch)
        except TimeoutError:
            self._channel.drop(effect.address)
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
        if reply is None:
            self.raft.failed(effect.exchange, self._now(), refused=refused)
        else:
            self.raft.answered(effect.exchange, reply, self._now())
        self._go_on()

    def _tell_of_stranger(self, address: Address) -> None:
        """Once for each: whoever formatted this node with another id would look for anything else."""
        if address not in self._strangers:
            self._strangers.add(address)
            _log.warning(
                "the controller at %s:%d is of another cluster: this node was formatted for %s; format an "
                "empty directory with the id of the others, or correct the address",
                *address,
                self._cluster_id,
            )

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped is not None and self.raft.is_stopped and not self._stopped.done():
            self._stopped.set_result(None)
        deadline = self.raft.deadline_ms()
        if deadline < NEVER_MS and not self._closed:
            delay_ms = max(deadline - self._now().ms, 1)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def fail(self, error: BaseException) -> None:
        """Give up: what is on disk, or what was decided, cannot be built upon."""
        if self.failure is not None or self._closed:
            return
        expected = isinstance(error, OSError | KafkaError)
        _log.error("the metadata log failed: %s", error, exc_info=None if expected else error)
        self.failure = error
        self._stop_asking()
        self._listener.failed(error)

    @property
    def is_closed(self) -> bool:
        return self._closed

    # The end

    async def resign(self, timeout_ms: int) -> None:
        """Hand leadership over, if this node has it: tell the others, and wait until they know."""
        self._stopped = asyncio.get_running_loop().create_future()
        self.raft.shut_down(self._now())
        self._go_on()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._stopped
        except TimeoutError:
            _log.info("not every voter heard that node %d resigns", self.raft.core.local.key.id)

    def _stop_asking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._channel.close()
        stopped = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this node stops")
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(stopped)
                answer.exception()  # seen, also where nobody waits any more

    async def close(self) -> None:
        """Stop taking part, sync what was appended and close the files."""
        self._closed = True
        self._stop_asking()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.failure is None:
            await self._runtime.pool.run(self.log.close)
        else:
            self.log.release()
