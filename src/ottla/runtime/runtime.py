"""The doors to the world as one object, handed down to whatever needs one of them."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.disk import Disk, RealDisk
from ottla.runtime.network import Network, RealNetwork
from ottla.runtime.pool import Pool, ThreadPool
from ottla.runtime.random import Random, SystemRandom

__all__ = ["Runtime"]


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    random: Random
    disk: Disk
    pool: Pool
    network: Network

    @classmethod
    def real(cls, *, pool_workers: int = 4, guest: bool = False) -> Runtime:
        """The machine itself; a guest's process is somebody else's. Call `close` when done with it."""
        return cls(
            clock=SystemClock(),
            random=SystemRandom(),
            disk=RealDisk(guest=guest),
            pool=ThreadPool(pool_workers),
            network=RealNetwork(),
        )

    def close(self) -> None:
        self.pool.close()
