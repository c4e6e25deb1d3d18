"""What lies unread at a process: Linux tells how many bytes wait in each of its connections."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def unread_bytes(pid: int, port: int) -> int:
    """How much has arrived for a process by its connections to a port, and was not read yet."""
    own = _sockets(pid)
    total = 0
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                remote, queues, inode = fields[2], fields[4], fields[9]
                if inode in own and int(remote.rpartition(":")[2], 16) == port:
                    total += int(queues.rpartition(":")[2], 16)
    return total


def _sockets(pid: int) -> set[str]:
    """The inodes of its sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found
