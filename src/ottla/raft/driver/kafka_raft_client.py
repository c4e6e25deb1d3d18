"""`KafkaRaftClient` runs a replica of the quorum: the state machine, its files, connections and clock.

Inputs go into the machine at once, and its effects are carried out in order, from one queue. Only writing
`quorum-state` holds the queue up: what rests on a vote leaves this node after the vote is durable. Syncing
the log and receiving snapshots run beside the queue. Invariant: no other node and no listener sees the effect
of an input before what it rests on would survive a power cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, TypeVarTuple

from ottla.log.segment.handles import is_lack_of_handles
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request as WireRequest
from ottla.protocol.schema import Response as WireResponse
from ottla.protocol.schema import drop_newer_fields
from ottla.raft.config import QuorumConfig
from ottla.raft.driver import wire
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog
from ottla.raft.driver.quorum_state_store import write_election_state
from ottla.raft.driver.snapshots import RawSnapshotWriter
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
from ottla.raft.log import NoRoom
from ottla.raft.machine import KafkaRaftMachine
from ottla.raft.messages import QueryVersions, Reply, VersionsReply
from ottla.raft.progress import ReplicaProgress
from ottla.raft.quorum_state import QuorumState, RaftStatus
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import NEVER_MS, ElectionState
from ottla.raft.voters import ReplicaKey, Voter, VoterSetHistory
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.disk import is_out_of_space
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_NS_PER_MS: Final = 1_000_000
# How long this replica waits for room before it tries a write again, and how often that is logged.
_ROOM_RETRY_SECONDS: Final = 0.5
_ROOM_LOG_INTERVAL_MS: Final = 10_000


class RaftListener(Protocol):
    """The user of the quorum's decisions. Calls come in order and must return at once."""

    def on_commit(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is committed, and can be read from the log."""
        ...

    def on_load_snapshot(self, id: SnapshotId) -> None:
        """The log starts over after this snapshot."""
        ...

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None: ...

    def on_failure(self, error: BaseException) -> None:
        """This replica cannot continue; the node has to stop."""
        ...


@dataclass(frozen=True, slots=True)
class QuorumReplicaInfo:
    """A replica as its leader sees it; times are of the wall clock, -1 before the first such event."""

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


class KafkaRaftClient:
    """Create it with a log that was opened and loaded, then call `start`:

    log = await runtime.pool.run(KafkaRaftLog.open, runtime.disk, runtime.clock, runtime.random, dir)
    voter_history, snapshot = await runtime.pool.run(log.load, static_voters)
    client = KafkaRaftClient(runtime, log, voter_history, local, cluster_id=..., listener=...)
    client.start()
    """

    def __init__(
        self,
        runtime: Runtime,
        log: KafkaRaftLog,
        voter_history: VoterSetHistory,
        local: Voter,
        listener: RaftListener,
        *,
        cluster_id: str,
        election: ElectionState | None = None,
        config: QuorumConfig | None = None,
        listener_name: str = "CONTROLLER",
        bootstrap: Sequence[Address] = (),
        channel: InterNodeClient | None = None,
    ) -> None:
        self._runtime: Final = runtime
        self.log: Final = log
        self.local: Final = local
        self.voter_history: Final = voter_history
        self._cluster_id: Final = cluster_id
        self._listener: Final = listener
        self._config: Final = config or QuorumConfig()
        self._channel: Final = channel or InterNodeClient(runtime.network)
        self._last_input_ms = 0  # the time of the machine's last input
        self._quorum: Final = QuorumState(
            local,
            log,
            voter_history,
            election=election,
            config=self._config,
            random=runtime.random,
            now_ms=self._now_ms(),
            listener=listener_name,
            bootstrap=bootstrap,
        )
        self._machine: Final = KafkaRaftMachine(self._quorum)
        self._queue: deque[Effect] = deque()
        self._draining = False
        self._persisting = False
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._answers: dict[asyncio.Future[Reply], None] = {}  # requests that are not answered yet
        self._resigned: asyncio.Future[None] | None = None
        self._foreign_controllers: set[Address] = set()  # of another cluster, each logged once
        self.failure: BaseException | None = None
        self._closed = False

    def _now_ms(self) -> int:
        """Read the clock for an input of the machine."""
        self._last_input_ms = self._runtime.clock.monotonic_ns() // _NS_PER_MS
        return self._last_input_ms

    # Queries

    @property
    def status(self) -> RaftStatus:
        """The quorum as this replica knows it now."""
        return self._quorum.status()

    def is_followed_since(self, since_ns: int) -> bool:
        """Whether this replica leads and a majority of the voters has fetched since this time of the
        monotonic clock.
        """
        return self._quorum.is_followed_since(-(-since_ns // _NS_PER_MS))

    @property
    def is_confirmed(self) -> bool:
        """Whether this replica leads, and no other one may have been elected."""
        limit_ns = self._quorum.config.confirmation_ms * _NS_PER_MS
        return self.is_followed_since(self._runtime.clock.monotonic_ns() - limit_ns)

    @property
    def epoch(self) -> int:
        return self._quorum.epoch

    @property
    def is_leader(self) -> bool:
        return self._quorum.is_leader

    @property
    def leader_address(self) -> Address | None:
        """Where the leader is reached; None if it is not known."""
        return self._quorum.address(self._quorum.leader_endpoints())

    @property
    def is_closed(self) -> bool:
        return self._closed

    # Inputs

    def start(self) -> None:
        """Take part in the quorum."""
        self._tell(self._machine.start, self._now_ms())

    async def handle(
        self, message: WireRequest, version: int | None = None, listener: str | None = None
    ) -> WireResponse:
        """Answer a request of the quorum's protocol, in a version or the newest one, that came by a listener,
        or by that of the quorum; KafkaError for an error of the response as a whole.
        """
        self.check_usable()
        request = wire.decode_request(message, self._cluster_id)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[answer] = None
        answer.add_done_callback(lambda done: self._answers.pop(done, None))
        try:
            self._give(self._machine.handle_request, answer, request, self._now_ms())
        except KafkaError:
            answer.cancel()
            raise
        self._carry_out_effects()
        response = wire.encode_reply(message, await answer, listener or self._quorum.listener)
        if version is not None and version < wire.VERSIONS[message.API_KEY]:
            drop_newer_fields(response, version)
        return response

    def append(self, batch: bytes) -> int:
        """Append a batch of this leader's epoch; the offset at which it is committed. KafkaError
        NOT_CONTROLLER if this node does not lead.
        """
        self.check_usable()
        end = self._give(self._machine.append, batch, self._now_ms())
        self._carry_out_effects()
        return end

    def upgrade_kraft_version(self, kraft_version: int, *, validate_only: bool) -> None:
        """Raise the `kraft.version` of the quorum, from voters that are configured to those of the log.
        KafkaError INVALID_UPDATE_VERSION says why that is refused.
        """
        self.check_usable()
        now_ms = self._now_ms()
        refusal = self._give(
            lambda: self._machine.upgrade_kraft_version(kraft_version, now_ms, validate_only=validate_only)
        )
        self._carry_out_effects()
        if refusal is not None:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, refusal)

    def describe_missing_leader(self, voters: str) -> str:
        """Say why there may be no leader, for an operator; `voters` are their ids."""
        return f"the quorum has no leader; its voters are {voters}"

    def describe(self) -> QuorumDescription | None:
        """Describe the quorum for DescribeQuorum; None if this node does not lead."""
        now_ms, wall_ms = self._now_ms(), self._runtime.clock.wall_ms()
        self._give(self._machine.poll, now_ms)
        self._carry_out_effects()
        info = self._machine.describe(now_ms)
        if info is None:
            return None

        def wall(ms: int) -> int:
            return -1 if ms < 0 else wall_ms - (now_ms - ms)

        def replica_info(progress: ReplicaProgress) -> QuorumReplicaInfo:
            times = wall(progress.last_fetch_ms), wall(progress.caught_up_ms)
            return QuorumReplicaInfo(progress.key, progress.end_offset, *times)

        return QuorumDescription(
            info.leader_id,
            info.epoch,
            info.high_watermark,
            [replica_info(each) for each in info.voters],
            [replica_info(each) for each in info.observers],
        )

    def _poll(self) -> None:
        self._timer = None
        try:
            self._tell(self._machine.poll, self._now_ms())
        except Exception as error:
            # Without a next timer this replica would take part no more, and tell no operator.
            self.fail(error)

    def _give(self, take: Callable[[*_Ts], _T], *inputs: *_Ts) -> _T:
        """Give the machine an input. If there is no room for what it writes, another voter has to lead; a
        voter that is alone waits until there is room. If the disk has failed, so does this replica.
        """
        try:
            return take(*inputs)
        except NoRoom as error:
            self._machine.on_no_room(self._now_ms())
            self._carry_out_effects()
            if self._quorum.is_leader:
                raise
            # The caller may ask the next leader.
            raise KafkaError(ErrorCode.NOT_CONTROLLER, error.message) from error
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self.fail(error)
                self.check_usable()  # NOT_CONTROLLER, as above
            raise

    def _tell(self, take: Callable[[*_Ts], None], *inputs: *_Ts) -> None:
        """Give the machine an input that no caller waits for. What it finds no room for is done later."""
        try:
            take(*inputs)
        except NoRoom:
            self._machine.on_no_room(self._now_ms())
        self._carry_out_effects()

    def check_usable(self) -> None:
        """KafkaError NOT_CONTROLLER if this replica has failed."""
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"the metadata log cannot be written any more: {self.failure}"
            ) from self.failure

    # Effects

    def _carry_out_effects(self) -> None:
        """Queue the machine's effects, carry out those that can be, and set the timer for the next poll."""
        if self._closed or self.failure is not None:
            return
        self._queue.extend(self._machine.take_effects())
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
                    return  # the next one replaces it
                self._persisting = True
                self._spawn("write quorum-state", self._persist, effect.election)
            case Send():
                self._spawn(f"request to node {effect.node_id}", self._send, effect)
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
                self._listener.on_commit(effect.high_watermark)
            case SnapshotLoaded():
                self._listener.on_load_snapshot(effect.id)
            case LeaderChanged():
                self._listener.on_leader_change(effect.leader_id, effect.epoch)

    def _spawn(self, name: str, work: Callable[[*_Ts], Awaitable[None]], *args: *_Ts) -> None:
        task = asyncio.get_running_loop().create_task(self._run_or_fail(work, *args), name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _run_or_fail(self, work: Callable[[*_Ts], Awaitable[None]], *args: *_Ts) -> None:
        try:
            await work(*args)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    async def _persist(self, election: ElectionState) -> None:
        """Write the election state. A full disk holds up whatever rests on it until there is room."""
        version = 1 if self.voter_history.kraft_version >= 1 else 0
        logged_ms: int | None = None
        while not self._closed:
            try:
                await self._runtime.pool.run(
                    write_election_state, self._runtime.disk, self.log.dir, election, version
                )
                break
            except OSError as error:
                if not is_out_of_space(error) and not is_lack_of_handles(error):
                    raise
                now_ms = self._runtime.clock.monotonic_ns() // _NS_PER_MS
                if logged_ms is None or now_ms - logged_ms >= _ROOM_LOG_INTERVAL_MS:
                    logged_ms = now_ms
                    _log.error(
                        "node %d takes no part in the quorum until there is room for its vote (%s); free "
                        "some, and it will go on",
                        self.local.key.id,
                        error,
                    )
            self._drop_outdated_effects()
            await asyncio.sleep(_ROOM_RETRY_SECONDS)
        self._persisting = False
        self._carry_out_effects()

    def _drop_outdated_effects(self) -> None:
        """Drop effects that wait and are of no use any more, so that their number is bounded."""
        is_inflight = self._quorum.requests.is_inflight
        self._queue = deque(
            effect
            for effect in self._queue
            if not (isinstance(effect, Send) and not is_inflight(effect.correlation_id))
            and not (
                isinstance(effect, Answer)
                and isinstance(effect.token, asyncio.Future)
                and effect.token.done()
            )
        )

    async def _flush(self) -> None:
        """Sync until everything appended is on disk. One sync covers all that came while the last one ran."""
        try:
            while not self._closed:
                try:
                    plan = self.log.prepare_flush()
                    if plan is None:
                        break
                    await self._runtime.pool.run(self.log.run_flush, plan)
                except NoRoom:
                    self.log.abandon_flush()
                    await asyncio.sleep(_ROOM_RETRY_SECONDS)
                    continue
                self.log.complete_flush(plan)
                if self.log.durable_end >= self.log.end.offset:
                    break
                self._tell(self._machine.on_log_flushed, self.log.durable_end, self._now_ms())
        finally:
            self._flushing = False
        self._tell(self._machine.on_log_flushed, self.log.durable_end, self._now_ms())

    async def _install(self, download: RawSnapshotWriter) -> None:
        try:
            usable = await self._runtime.pool.run(self.log.finish_download, download)
        except NoRoom as error:
            _log.error("node %d fetches a snapshot again: %s", self.local.key.id, error.message)
            await asyncio.sleep(_ROOM_RETRY_SECONDS)
            usable = False
        while not self._closed:
            try:
                self._machine.on_snapshot_ready(download.id, self._now_ms(), usable=usable)
                break
            except NoRoom:
                await asyncio.sleep(_ROOM_RETRY_SECONDS)
        self._carry_out_effects()

    async def _send(self, effect: Send) -> None:
        refused = False
        reply: Reply | None = None
        timeout_ms = self._config.request_timeout_ms
        try:
            if isinstance(effect.request, QueryVersions):
                versions = await self._channel.api_versions(effect.address, timeout_ms=timeout_ms)
                reply = VersionsReply(*wire.supported_kraft_versions(versions))
            else:
                message = wire.encode_request(effect.request, self._cluster_id)
                newest = wire.VERSIONS[message.API_KEY]
                response = await self._channel.request(effect.address, message, newest, timeout_ms=timeout_ms)
                reply = wire.decode_reply(response, self._quorum.listener)
        except KafkaError as error:
            if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._log_foreign_controller(effect.address)
            reply = wire.error_reply(effect.request, error.code, self._quorum.epoch)
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
        now_ms = self._now_ms()
        if reply is None:
            self._tell(lambda: self._machine.handle_failure(effect.correlation_id, now_ms, refused=refused))
        else:
            self._tell(self._machine.handle_response, effect.correlation_id, reply, now_ms)

    def _log_foreign_controller(self, address: Address) -> None:
        """Warn once for each address: without the warning, the operator who formatted this node with another
        cluster id would look for every other cause.
        """
        if address not in self._foreign_controllers:
            self._foreign_controllers.add(address)
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
        if self._resigned is not None and self._machine.is_shut_down and not self._resigned.done():
            self._resigned.set_result(None)
        # The time of the last input, and not the present: the machine has done what was due up to then.
        deadline_ms = self._machine.next_deadline_ms(self._last_input_ms)
        if deadline_ms < NEVER_MS and not self._closed:
            delay_ms = max(deadline_ms - self._runtime.clock.monotonic_ns() // _NS_PER_MS, 1)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._poll)

    def fail(self, error: BaseException) -> None:
        """Give up: what is on disk, or what was decided, cannot be built upon."""
        if self.failure is not None or self._closed:
            return
        expected = isinstance(error, OSError | KafkaError)
        _log.error("the metadata log failed: %s", error, exc_info=None if expected else error)
        self.failure = error
        self._stop_requests()
        self._listener.on_failure(error)

    # The end

    async def resign(self, timeout_ms: int) -> None:
        """Hand leadership over, if this node has it: tell the other voters, and wait until they know."""
        self._resigned = asyncio.get_running_loop().create_future()
        self._tell(self._machine.shut_down, self._now_ms())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._resigned
        except TimeoutError:
            _log.info("not every voter heard that node %d resigns", self.local.key.id)

    def _stop_requests(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._channel.close()
        stopped = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this node stops")
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(stopped)
                answer.exception()  # retrieved, also where no caller awaits it any more

    async def close(self) -> None:
        """Stop taking part, sync what was appended and close the files."""
        self._closed = True
        self._stop_requests()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self.failure is None:
            await self._runtime.pool.run(self.log.close)
        else:
            self.log.release()
