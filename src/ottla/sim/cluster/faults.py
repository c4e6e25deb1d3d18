"""Faults of a cluster beyond those of any machine: restarts, disk faults, and clients that are killed or
paused.

Disks become full, fail as a whole, or fail once. A node that found no space must go on by itself once there
is some. A node that met an error may only end, or take the directory offline, until an operator has repaired
the disk; the simulated operator then starts the node again.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ottla.log.directory.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT
from ottla.records.batch import iter_offsets
from ottla.runtime.disk import read_file
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.members import ClusterMember
from ottla.sim.disk import READ_ONLY, Op
from ottla.sim.nemesis import Nemesis, NemesisConfig
from ottla.sim.object_store import SimObjectStore
from ottla.sim.world import SimMachine, World
from ottla.sim.zookeeper import SimZooKeeper

_WHOLE_DISK_BYTES = 1 << 50
# How much space is left on a disk that is about to be full.
_ROOM_BYTES = (0, 4_096, 40_000)
_FAILING_ONCE = (Op.READ, Op.WRITE, Op.SYNC, Op.CREATE, Op.RENAME, Op.SYNC_DIR)
_FILE_ERRORS = (errno.EIO, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE)
_CHANGES = tuple(op for op in Op if op not in READ_ONLY)
_OPERATOR_INTERVAL_S = 0.5
_SECTOR_BYTES = 512
_MOST_COPIES = 2
_METADATA = "__cluster_metadata-"
# The files whose bits rot, of partitions and of directories, by what their names end with.
_OF_PARTITIONS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", LEADER_EPOCH_CHECKPOINT)
_ROTTING = frozenset((*_OF_PARTITIONS, LOG_STARTS, RECOVERY_POINTS, HIGH_WATERMARKS))
# How long the operator goes on after the last fault: a node notices a failed disk only some time later.
_OPERATOR_STAYS_S = 5.0


class ClusterFaultInjector:
    """Injects faults into the nodes and clients of a cluster, with a `Nemesis`."""

    def __init__(
        self,
        world: World,
        config: NemesisConfig,
        members: Sequence[ClusterMember],
        checker: ClusterChecker,
        *,
        synced: bool,
        directories: Sequence[str],
        zookeeper: SimZooKeeper | None = None,
        store: SimObjectStore | None = None,
    ) -> None:
        self._world = world
        self._store = StoreFaultInjector(world, store) if store is not None else None
        self._zookeeper = zookeeper
        self._members = {member.machine.name: member for member in members}
        self._checker = checker
        self._synced = synced
        self._rots = bool(config.weights.get("bits rot"))
        self._disks = DiskFaultInjector(world, self._members, directories, self._stop, checker)
        self._rolling = False
        self.clients: list[SimMachine] = []
        faults: Mapping[str, Callable[[SimMachine], None]] = {
            "stop and start": self._restart,
            "stop at any moment": self._stop_at_any_moment,
            "rolling restart": lambda _: self._roll(),
            "kill a client": lambda _: self._kill_client(),
            "pause a client": lambda _: self._pause_client(),
            **self._disks.faults,
            **({} if self._store is None else self._store.faults),
        }
        if zookeeper is not None:
            faults = {
                **faults,
                "kill ZooKeeper": lambda _: self._kill_zookeeper(),
                "pause ZooKeeper": lambda _: self._pause_zookeeper(),
                "cut off from ZooKeeper": self._cut_off_from_zookeeper,
                "expire a session": lambda _: self._expire_session(),
                "delete /controller": lambda _: self._delete_controller(),
            }
        self.nemesis = Nemesis(
            world,
            config,
            lambda: [member.machine for member in members],
            may_end=self._may_end,
            may_fall_silent=self._may_fall_silent,
            more=faults,
        )
        checker.is_steady = lambda id: self.nemesis.is_steady(checker.machines[id])
        self._disks.nemesis = self.nemesis
        if self._store is not None:
            self._store.nemesis = self.nemesis

    async def run(self, seconds: float) -> None:
        """Inject faults for this long."""
        if self._rots:
            self._disks.choose_rotting()
        self._spawn(self._disks.operate(), "operator")
        await self.nemesis.run(seconds)

    def let_operator_restart(self) -> None:
        """Let the operator restart nodes with an offline directory, for a last time."""
        self._disks.is_operator_waiting = False

    def stop(self) -> None:
        """Remove all faults."""
        self._disks.is_operator_waiting = True
        self._disks.heal()
        if self._store is not None:
            self._store.heal()
        self.nemesis.stop()

    def _spawn(self, what: Coroutine[Any, Any, None], name: str) -> None:
        loop = self._world.loop
        loop.create_task(what, name=name, context=loop.world.context.copy())

    def _may_end(self, machine: SimMachine, power_loss: bool) -> bool:
        member = self._members[machine.name]
        if self._synced:
            return self._keeps_sound_replicas(member)
        for each in self._members.values():
            each.check_metadata()
        if not self._checker.may_end(member.id, power_loss=power_loss):
            return False
        self._checker.on_ended(member.id, power_loss=power_loss)
        return True

    def _keeps_sound_replicas(self, member: ClusterMember, *, ends: bool = True) -> bool:
        """Whether a member may end, or fall silent, as far as the disk is concerned that rots."""
        if self._checker.rotting is None:
            return True
        for each in self._members.values():
            each.check_metadata()
        if not self._checker.keeps_sound_replicas(member.id):
            return False
        if ends:
            self._checker.on_ended(member.id, power_loss=False)
        return True

    def _may_fall_silent(self, machine: SimMachine) -> bool:
        if self._synced:
            return self._keeps_sound_replicas(self._members[machine.name], ends=False)
        for each in self._members.values():
            each.check_metadata()
        return self._checker.may_fall_silent(self._members[machine.name].id)

    def _stop(self, member: ClusterMember) -> bool:
        """Ask a node to stop cleanly and start again; False if it may not be stopped now.

        It hands its partitions over to replicas that are in sync as far as the controller knows, and they may
        have lost their power a moment ago: so a replica that has everything must remain then, too.
        """
        may = member.is_awake and self._may_end(member.machine, power_loss=False)
        if may:
            member.restart()
        return may

    def _restart(self, machine: SimMachine) -> None:
        member = self._members[machine.name]
        if member.is_ready and self._stop(member):
            self.nemesis.count("stop and start", machine.name)

    def _stop_at_any_moment(self, machine: SimMachine) -> None:
        """Ask a node to stop, also one that has not started completely."""
        member = self._members[machine.name]
        if not member.is_stopping and self._stop(member):
            self.nemesis.count("stop at any moment", machine.name)

    def _roll(self) -> None:
        if not self._rolling:
            self._rolling = True
            self.nemesis.count("rolling restart")
            self._spawn(self._roll_all(), "rolling restart")

    async def _roll_all(self) -> None:
        """Restart one node after the other, each once the one before is ready again or is overdue."""
        for member in self._members.values():
            boots = member.machine.boots
            for _ in range(40):
                if self._stop(member):
                    break
                await asyncio.sleep(0.25)
            for _ in range(40):
                await asyncio.sleep(0.25)
                if member.machine.boots > boots and member.is_ready:
                    break
        self._rolling = False

    def _kill_zookeeper(self) -> None:
        assert self._zookeeper is not None
        machine = self._zookeeper.machine
        if machine.is_up:
            self.nemesis.count("kill ZooKeeper")
            machine.kill(power_loss=False)
            self.nemesis.undo_later(lambda: None if machine.is_up else machine.boot())

    def _pause_zookeeper(self) -> None:
        assert self._zookeeper is not None
        machine = self._zookeeper.machine
        if machine.is_up:
            self.nemesis.count("pause ZooKeeper")
            machine.pause()
            self.nemesis.undo_later(machine.resume)

    def _cut_off_from_zookeeper(self, machine: SimMachine) -> None:
        assert self._zookeeper is not None
        fabric, there = self._world.fabric, self._zookeeper.machine.name
        links = [(machine.name, there), (there, machine.name)]
        if self.nemesis.random.random() < 0.3:
            links = links[:1] if self.nemesis.random.random() < 0.5 else links[1:]
        self.nemesis.count("cut off from ZooKeeper", machine.name)
        for link in links:
            fabric.cut(*link)

        def mend() -> None:
            for link in links:
                fabric.mend(*link)

        self.nemesis.undo_later(mend)

    def _expire_session(self) -> None:
        assert self._zookeeper is not None
        if self._zookeeper.sessions:
            id = self.nemesis.random.choice(self._zookeeper.sessions)
            self.nemesis.count("expire a session", str(id))
            self._zookeeper.expire(id)

    def _delete_controller(self) -> None:
        """As operators do by hand: the controller may learn of it late, and still believes in itself."""
        assert self._zookeeper is not None
        found = self._zookeeper.data("/controller")
        if found is None:
            return
        self.nemesis.count("delete /controller")
        if self.nemesis.random.random() < 0.7:
            fabric, here = self._world.fabric, self._zookeeper.machine.name
            there = f"node{json.loads(found)['brokerid']}"
            fabric.slow(here, there, self.nemesis.random.uniform(50, 1_000))
            self.nemesis.undo_later(lambda: fabric.mend(here, there))
        self._zookeeper.delete("/controller")

    def _kill_client(self) -> None:
        up = [machine for machine in self.clients if machine.is_up]
        if up:
            machine = self.nemesis.random.choice(up)
            self.nemesis.count("kill a client", machine.name)
            machine.kill(power_loss=self.nemesis.random.random() < 0.3)
            self.nemesis.undo_later(lambda: None if machine.is_up else machine.boot())

    def _pause_client(self) -> None:
        up = [machine for machine in self.clients if machine.process is not None]
        if up:
            machine = self.nemesis.random.choice(up)
            self.nemesis.count("pause a client", machine.name)
            machine.pause()
            self.nemesis.undo_later(machine.resume)


class DiskFaultInjector:
    """Injects disk faults. `restart` stops a node and starts it again, if it may be stopped now."""

    def __init__(
        self,
        world: World,
        members: Mapping[str, ClusterMember],
        directories: Sequence[str],
        restart: Callable[[ClusterMember], bool],
        checker: ClusterChecker,
    ) -> None:
        self._world = world
        self._members = members
        self._directories = directories
        self._restart = restart
        self._checker = checker
        self._healed_at: float | None = None
        # The machine whose disk rots, if one does.
        self._rotting: SimMachine | None = None
        # Whether nodes with an offline directory stay as they are for now.
        self.is_operator_waiting = False
        self.nemesis: Nemesis  # set by `ClusterFaultInjector`, which creates both

    @property
    def faults(self) -> Mapping[str, Callable[[SimMachine], None]]:
        return {
            "full disk": self._fill,
            "failing directory": self._break,
            "disk error": self._fail_once,
            "failing file": self._break_file,
            "read-only directory": self._make_read_only,
            "no handles": self._use_up_handles,
            "bits rot": self._rot,
        }

    def heal(self) -> None:
        """Remove all disk faults and limits."""
        for member in self._members.values():
            member.machine.disk.heal()
            member.machine.disk.limit(_WHOLE_DISK_BYTES)
            member.disk_faults.clear()
        self._healed_at = self._world.loop.time()

    async def operate(self) -> None:
        """Play the operator: restart nodes with an offline directory whose disk is repaired."""
        while self._healed_at is None or self._world.loop.time() < self._healed_at + _OPERATOR_STAYS_S:
            await asyncio.sleep(_OPERATOR_INTERVAL_S)
            if self.is_operator_waiting:
                self._healed_at = self._world.loop.time()
                continue
            for member in self._members.values():
                if member.needs_operator and self._restart(member):
                    self._world.coverage["started again after a disk failed"] += 1

    def _fill(self, machine: SimMachine) -> None:
        disk, random = machine.disk, self.nemesis.random
        usage = disk.usage("/")
        room = random.randrange(0, random.choice(_ROOM_BYTES) + 1)
        disk.limit(usage.total_bytes - usage.free_bytes + room)
        self._inject(machine, "full disk", f"{room} bytes are left", lambda: disk.limit(_WHOLE_DISK_BYTES))

    def _break(self, machine: SimMachine) -> None:
        path = self.nemesis.random.choice(self._directories)
        fault = machine.disk.fail(errno.EIO, prefix=path, times=None)
        self._inject(machine, "failing directory", path, lambda: machine.disk.heal(fault))

    def _fail_once(self, machine: SimMachine) -> None:
        random = self.nemesis.random
        path, op = random.choice(self._directories), random.choice(_FAILING_ONCE)
        fault = machine.disk.fail(errno.EIO, prefix=path, ops=[op], skip=random.randrange(0, 20))
        self._inject(machine, "disk error", f"soon, {op} in {path}", lambda: machine.disk.heal(fault))

    def _break_file(self, machine: SimMachine) -> None:
        """Make one file, or all files of one partition, fail in one way, and no others of the log directory.
        Each kind of file is as likely as any other, however many there are.
        """
        random = self.nemesis.random
        kinds: dict[str, list[str]] = {}
        for path in machine.disk.paths():
            if path.startswith(tuple(self._directories)):
                kinds.setdefault(path.rpartition("/")[2].lstrip("0123456789-"), []).append(path)
        if kinds:
            path, error = random.choice(kinds[random.choice(list(kinds))]), random.choice(_FILE_ERRORS)
            if random.random() < 0.3:
                path = path.rpartition("/")[0] + "/"
            fault = machine.disk.fail(error, prefix=path, times=None)
            detail = f"{errno.errorcode[error]} of {path}"
            self._inject(machine, "failing file", detail, lambda: machine.disk.heal(fault))

    def _make_read_only(self, machine: SimMachine) -> None:
        path = self.nemesis.random.choice(self._directories)
        fault = machine.disk.fail(errno.EROFS, prefix=path, ops=_CHANGES, times=None)
        self._inject(machine, "read-only directory", path, lambda: machine.disk.heal(fault))

    def _use_up_handles(self, machine: SimMachine) -> None:
        fault = machine.disk.fail(errno.EMFILE, prefix="/data", ops=(Op.OPEN, Op.CREATE), times=None)
        self._inject(machine, "no handles", "", lambda: machine.disk.heal(fault))

    def choose_rotting(self) -> None:
        """Draw the broker whose disk rots, before any fault: what all have lost is lost."""
        brokers = [each for each in self._members.values() if "broker" in each.settings["process.roles"]]
        rotting = self._world.random.choice(brokers)
        self._rotting, self._checker.rotting = rotting.machine, rotting.id

    def _rot(self, _: SimMachine) -> None:
        """Change bytes at rest, in files of partitions and checkpoints."""
        assert self._rotting is not None
        random = self._world.random
        for each in self._members.values():
            each.check_metadata()
        if not self._checker.keeps_sound_replicas():
            return
        for _file in range(random.randrange(1, 6)):
            self._rot_file(self._rotting)

    def _rot_file(self, machine: SimMachine) -> None:
        """Change some bytes of one file. Each kind of file is as likely as any other."""
        disk, random = machine.disk, self._world.random
        kinds: dict[str, list[str]] = {}
        copies_of = (path.rpartition("/")[0] for path in disk.paths() if "-damaged-stray/" in path)
        aside = dict.fromkeys(copies_of)
        copies = Counter(dir.rpartition("/")[2].rpartition(".")[0] for dir in aside)
        for path in disk.paths():
            dir, _, name = path.rpartition("/")
            name = name.lstrip("0123456789")
            if dir in aside or copies[dir.rpartition("/")[2]] >= _MOST_COPIES:
                continue  # a broker that has kept some copies of a damaged log waits for its operator
            is_at_rest = disk.is_at_rest(path) and path.startswith(tuple(self._directories))
            if self._checker.tier is not None and name == LEADER_EPOCH_CHECKPOINT:
                continue  # those of records that are in the store only are nowhere else
            if name in _ROTTING and is_at_rest and _METADATA not in path:
                kinds.setdefault(name, []).append(path)
        if not kinds:
            return
        path = random.choice(kinds[random.choice(list(kinds))])
        with disk.undisturbed():
            content = read_file(disk, path)
        position = random.randrange(len(content))
        how = random.choice(("flip", "flip", "zeros", "swap"))
        if how == "flip":
            data = bytes([content[position] ^ 1 << random.randrange(8)])
        else:
            position -= position % _SECTOR_BYTES
            other = random.randrange(len(content)) // _SECTOR_BYTES * _SECTOR_BYTES if how == "swap" else None
            size = min(_SECTOR_BYTES, len(content) - position)
            data = bytes(size) if other is None else content[other : other + size].ljust(size, b"\0")
        if data == content[position : position + len(data)] or _is_hidden_by_a_gap(
            path, content, position, data
        ):
            return
        disk.rot(path, position, data)
        if self._checker.tier is not None:
            self._checker.tier.rotten[machine.name, path] = None
        self.nemesis.count("bits rot", f"{machine.name} {how} {len(data)} at {position} of {path}")

    def _inject(self, machine: SimMachine, what: str, detail: str, undo: Callable[[], None]) -> None:
        end = self._members[machine.name].begin_disk_fault()
        self.nemesis.count(what, f"{machine.name} {detail}")

        def undone() -> None:
            undo()
            self._world.trace.add("nemesis", f"{what} ends: {machine.name}")
            end()

        self.nemesis.undo_later(undone)


def _is_hidden_by_a_gap(path: str, content: bytes, position: int, data: bytes) -> bool:
    """Whether only a base offset would change, in a segment with gaps: that cannot always be seen."""
    if not path.endswith(".log"):
        return False
    batches = list(iter_offsets(content))
    contiguous = all(one[3] + 1 == other[2] for one, other in pairwise(batches))
    return not contiguous and any(at <= position < position + len(data) <= at + 8 for at, *_ in batches)


class StoreFaultInjector:
    """Injects faults of the object store."""

    def __init__(self, world: World, store: SimObjectStore) -> None:
        self._world = world
        self._store = store
        self.nemesis: Nemesis  # set by `ClusterFaultInjector`, which creates both

    @property
    def faults(self) -> Mapping[str, Callable[[SimMachine], None]]:
        return {
            "store is away": lambda _: self._send_away(),
            "store is slow": lambda _: self._slow_down(),
            "store throttles": lambda _: self._throttle(),
            "store fails": lambda _: self._fail(),
            "cut off from the store": self._cut_off,
            "stale lists": lambda _: self._make_stale(),
        }

    def heal(self) -> None:
        self._store.heal()

    def _send_away(self) -> None:
        self._store.is_away = True
        self._inject("store is away", "", lambda: setattr(self._store, "is_away", False))

    def _slow_down(self) -> None:
        self._store.slowness = self.nemesis.random.choice((10.0, 50.0, 200.0))
        detail = f"{self._store.slowness:.0f} times"
        self._inject("store is slow", detail, lambda: setattr(self._store, "slowness", 1.0))

    def _throttle(self) -> None:
        self._store.throttles = True
        self._inject("store throttles", "", lambda: setattr(self._store, "throttles", False))

    def _fail(self) -> None:
        self._store.error_rate = self.nemesis.random.choice((0.2, 0.5, 0.9))
        self._inject("store fails", f"{self._store.error_rate:.0%} of all requests", self._store.calm)

    def _cut_off(self, machine: SimMachine) -> None:
        self._store.cut_off[machine.name] = None
        self._inject(
            "cut off from the store",
            machine.name,
            lambda: self._store.cut_off.pop(machine.name, None),
        )

    def _make_stale(self) -> None:
        self._store.stale_s = 5.0
        self._inject("stale lists", "", lambda: setattr(self._store, "stale_s", 0.0))

    def _inject(self, what: str, detail: str, undo: Callable[[], object]) -> None:
        self.nemesis.count(what, detail)

        def undone() -> None:
            if not self.nemesis.is_stopped:
                undo()
                self._world.trace.add("nemesis", f"{what} ends {detail}".rstrip())

        self.nemesis.undo_later(undone)
