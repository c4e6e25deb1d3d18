"""What a node runs on: the file system of its directories, the room that is left there, a container.

`ottla start` says what of this a first start stumbles over. Whatever the system does not tell is unknown, and
no reason for a remark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

NETWORK_FILE_SYSTEMS: Final = frozenset(
    (
        *("9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"),
        *("rclone", "s3fs", "sshfs", "virtiofs"),
    )
)
"""File systems of other machines, where locks and syncs may mean less than a log needs."""
IN_MEMORY_FILE_SYSTEMS: Final = frozenset(("ramfs", "tmpfs"))
LITTLE_ROOM_BYTES: Final = 512 * 1024 * 1024
_SYNCS: Final = 16
_SYNCED_BYTES: Final = 4096
IMPOSSIBLE_SYNC_SECONDS: Final = 15e-6
"""No disk that keeps data without power makes a file longer in less time."""
_MOUNTS: Final = "/proc/self/mounts"
_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))
_CONTAINER_FILES: Final = (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"))


def existing_parent(path: str) -> str:
    """The path itself, or the nearest directory above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def file_system_of(path: str, mounts: str | None = None) -> str:
    """The type of the file system that has a path, or will have it; empty if the system does not say.

    >>> file_system_of("/data/ottla", "disk / ext4 rw 0 0\\nhost:/x /data nfs4 rw 0 0\\n")
    'nfs4'
    """
    if mounts is None:
        try:
            with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return ""
        path = os.path.realpath(existing_parent(path))
    found, longest = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1]
        for escape, character in _ESCAPES:
            place = place.replace(escape, character)
        is_above = path == place or path.startswith(place.rstrip("/") + "/")
        # Of two at one place the later lies over the earlier.
        if is_above and len(place) >= longest:
            found, longest = fields[2], len(place)
    return found


def is_network_file_system(kind: str) -> bool:
    """Whether files are on another machine: by the type, also of one in user space, as `fuse.sshfs`."""
    return kind in NETWORK_FILE_SYSTEMS or kind in (
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.glusterfs",
    )


def free_bytes(path: str) -> int | None:
    """The room that a user without privileges has left at a path, or will have there."""
    try:
        facts = os.statvfs(existing_parent(path))
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize


def free_files(path: str) -> int | None:
    """How many more files there can be; None where the file system has no limit."""
    try:
        facts = os.statvfs(existing_parent(path))
    except OSError:
        return None
    return facts.f_favail if facts.f_files else None


def container(variables: Mapping[str, str] | None = None) -> str:
    """The kind of container around this process; empty if none is known."""
    variables = os.environ if variables is None else variables
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "Kubernetes"
    found = next((kind for path, kind in _CONTAINER_FILES if os.path.exists(path)), "")
    return found or ("a container" if variables.get("container") else "")


def sync_seconds(path: str) -> float | None:
    """How long a sync takes where a directory is or will be: the median of a few, of a file without a name.
    None where the system has no such files.
    """
    flag = getattr(os, "O_TMPFILE", 0)
    if not flag:
        return None
    took = []
    try:
        fd = os.open(existing_parent(path), flag | os.O_WRONLY, 0o600)
        try:
            for _ in range(_SYNCS):
                os.write(fd, bytes(_SYNCED_BYTES))
                begin = time.perf_counter()
                os.fdatasync(fd)
                took.append(time.perf_counter() - begin)
        finally:
            os.close(fd)
    except OSError:
        return None
    return sorted(took)[_SYNCS // 2]


def durability_remarks(dirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Why records are not durable in directories although they are synced: what it is, and what to do."""
    elsewhere = "choose a directory on a disk of this machine with --data-dir, or set log.durability=replicas"
    for path in dirs:
        kind = file_system_of(path)
        took_s = None if kind in IN_MEMORY_FILE_SYSTEMS else sync_seconds(path)
        if kind in IN_MEMORY_FILE_SYSTEMS:
            yield f"log.durability=disk, and {path} is in memory ({kind})", elsewhere
        elif is_network_file_system(kind):
            yield (
                f"log.durability=disk, and {path} is on a network file system ({kind}), where a sync may not "
                "reach a disk",
                elsewhere,
            )
        elif took_s is not None and took_s < IMPOSSIBLE_SYNC_SECONDS:
            yield (
                f"log.durability=disk, and a sync in {path} takes {took_s * 1e6:.0f} µs: quicker than a disk "
                "can be, so it answers before it has written",
                "switch the write cache of the disk or of the virtual machine off (not cache=unsafe), or "
                "choose a directory on another disk with --data-dir",
            )


def directory_remarks(dirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is doubtful about where directories are: what it is, and what to do."""
    for path in dirs:
        kind = file_system_of(path)
        if is_network_file_system(kind):
            yield (
                f"{path} is on a network file system ({kind}), where a lock may not exclude another node "
                "and a sync may not reach a disk",
                "choose a directory on a disk of this machine with --data-dir",
            )
        elif kind in IN_MEMORY_FILE_SYSTEMS:
            yield (
                f"{path} is in memory ({kind}), and gone when the machine stops",
                "choose a directory on a disk with --data-dir, if the data has to stay",
            )
        free = free_bytes(path)
        if free is not None and free < LITTLE_ROOM_BYTES:
            yield (
                f"{free // (1024 * 1024)} MiB are left on the disk of {path}",
                "make room, or choose a directory on another disk with --data-dir; retention.bytes "
                "bounds what a topic keeps",
            )
        files = free_files(path)
        if files is not None and files < 10_000:
            yield (
                f"{files} more files fit on the file system of {path}, and each partition has three or more",
                "remove files there, or choose a directory on another file system with --data-dir",
            )
