"""Clock, randomness, disk, pool and network as one object, which is passed to components."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.disk import Disk, RealDisk
from ottla.runtime.network import Network, RealNetwork
from ottla.runtime.pool import Pool, ThreadPool
from ottla.runtime.random import Random, SystemRandom

if TYPE_CHECKING:
    from ottla.runtime.object_store import ObjectStore, ObjectStoreSettings
    from ottla.runtime.zookeeper import ZooKeeperSession, ZooKeeperSettings


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    random: Random
    disk: Disk
    pool: Pool
    network: Network
    # Opens a session with ZooKeeper, for the legacy mode; None for a real one.
    zookeeper: Callable[[ZooKeeperSettings], Awaitable[ZooKeeperSession]] | None = None
    # Opens the object store of tiered storage; None for a real one.
    object_store: Callable[[ObjectStoreSettings], ObjectStore] | None = None

    @classmethod
    def real(cls, *, pool_workers: int = 4, guest: bool = False) -> Runtime:
        """Return the runtime of this machine; call `close` when done with it.

        A `guest` runs inside the process of another program, as a `LocalNode` does.
        """
        return cls(
            clock=SystemClock(),
            random=SystemRandom(),
            disk=RealDisk(guest=guest),
            pool=ThreadPool(pool_workers),
            network=RealNetwork(),
        )

    def close(self) -> None:
        self.pool.close()
