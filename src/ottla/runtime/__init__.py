"""The only doors to the world: clock, randomness, disk, network, the pool for blocking calls, the process.

Everything above this package gets them handed in as a `Runtime` and imports neither `time` nor `os` nor
`socket`. So the same code runs on the machine and, with the doors of `ottla.sim`, under a virtual clock and
injected faults.
"""

from ottla.runtime.address import Address
from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.disk import (
    Buffer,
    Disk,
    DiskUsage,
    File,
    Lock,
    RealDisk,
    read_file,
    remove_tree,
    write_file,
)
from ottla.runtime.network import (
    HostNotFound,
    Listener,
    Network,
    RealNetwork,
    SocketOptions,
    TlsHandshakeFailed,
)
from ottla.runtime.pool import InlinePool, Pool, ThreadPool
from ottla.runtime.random import Random, SeededRandom, SystemRandom
from ottla.runtime.runtime import Runtime

__all__ = [
    "Address",
    "Buffer",
    "Clock",
    "Disk",
    "DiskUsage",
    "File",
    "HostNotFound",
    "InlinePool",
    "Listener",
    "Lock",
    "Network",
    "Pool",
    "Random",
    "RealDisk",
    "RealNetwork",
    "Runtime",
    "SeededRandom",
    "SocketOptions",
    "SystemClock",
    "SystemRandom",
    "ThreadPool",
    "TlsHandshakeFailed",
    "read_file",
    "remove_tree",
    "write_file",
]
