"""Power that fails under real processes: what they have not synced is gone.

    with PowerLoss(directory, monkeypatch) as power, LocalCluster(data_dir=str(directory)) as cluster:
        for node in cluster.nodes:
            cluster.kill(node)
            power.lose(Path(node.data_dir), random)
        cluster.start_all()

Nodes that are started meanwhile have a library preloaded that keeps what they sync (`power.c`). After `lose`
a directory has what a disk could have after a loss of power: all that was synced, and of everything else,
file by file, nothing, all or some sectors; of the names in each directory those of its last sync, or the
latest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

SECTOR_BYTES: Final = 512
_SOURCE: Final = Path(__file__).with_name("power.c")
DIRECTORY: Final = "d"
FILE: Final = "f"
_COMPILER: Final = "cc"


def missing_requirement() -> str | None:
    if sys.platform != "linux":
        return "it preloads a library of Linux"
    return None if shutil.which(_COMPILER) else "there is no C compiler (cc)"


class PowerLoss:
    """Covers the files below `directory`; its own ones are in `beside`, on the same file system."""

    def __init__(self, directory: Path, beside: Path) -> None:
        self._directory = directory
        self._disk = beside
        self._environment = {
            "LD_PRELOAD": str(beside / "power.so"),
            "POWER_ROOT": str(directory),
            "POWER_DISK": str(beside),
        }
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        for kind in ("data", "names", "kept"):
            (self._disk / kind).mkdir(parents=True)
        library = self._environment["LD_PRELOAD"]
        subprocess.run(
            [_COMPILER, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, str(_SOURCE), "-ldl", "-lpthread"],
            check=True,
        )
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    def _sync_all(self, directory: Path) -> None:
        """All that is in this directory is on the disk."""
        for folder in [directory, *(each for each in directory.rglob("*") if each.is_dir())]:
            names = "".join(
                f"{inode} {kind} {name}\n" for name, (inode, kind) in latest_names(folder).items()
            )
            (self._disk / "names" / str(folder.stat().st_ino)).write_text(names)
        for file in directory.rglob("*"):
            if file.is_file():
                shutil.copyfile(file, self._disk / "data" / str(file.stat().st_ino))

    def lose(self, directory: Path, random: Random | None = None) -> None:
        """Leave in this directory what the disk has; the process that used it is dead. Without `random`,
        nothing that was not synced.
        """
        latest = {each.stat().st_ino: each for each in (self._disk / "kept").iterdir()}
        latest |= {each.stat().st_ino: each for each in [directory, *directory.rglob("*")]}
        restored = directory.with_name(directory.name + ".restored")
        self._restore(directory.stat().st_ino, restored, latest, random)
        shutil.rmtree(directory)
        restored.rename(directory)
        self._sync_all(directory)

    def _restore(self, inode: int, target: Path, latest: dict[int, Path], random: Random | None) -> None:
        target.mkdir(mode=0o700)
        for name, (child, kind) in sorted(self._names(inode, latest.get(inode), random).items()):
            if kind == DIRECTORY:
                self._restore(child, target / name, latest, random)
            else:
                (target / name).write_bytes(self._content(child, latest.get(child), random))
                (target / name).chmod(0o600)

    def _names(self, inode: int, latest: Path | None, random: Random | None) -> dict[str, tuple[int, str]]:
        if random is not None and latest is not None and random.random() < 0.5:
            return latest_names(latest)
        try:
            lines = (self._disk / "names" / str(inode)).read_text().splitlines()
        except FileNotFoundError:
            return latest_names(latest) if latest is not None else {}
        return {name: (int(number), kind) for number, kind, name in (line.split(" ", 2) for line in lines)}

    def _content(self, inode: int, latest: Path | None, random: Random | None) -> bytes:
        try:
            synced = (self._disk / "data" / str(inode)).read_bytes()
        except FileNotFoundError:
            if latest is not None and not (self._disk / "kept" / str(inode)).exists():
                return latest.read_bytes()
            synced = b""
        if random is None or latest is None or (kept := random.random()) < 1 / 3:
            return synced
        written = latest.read_bytes()
        if kept < 2 / 3:
            return written
        size = random.randint(*sorted((len(synced), len(written))))
        content = bytearray(synced[:size].ljust(size, b"\0"))
        for at in range(0, size, SECTOR_BYTES):
            if random.random() < 0.5 and at < len(written):
                sector = written[at : min(at + SECTOR_BYTES, size)]
                content[at : at + len(sector)] = sector
        return bytes(content)


def latest_names(folder: Path) -> dict[str, tuple[int, str]]:
    """The names in a directory, each with its inode and what it is."""
    return {
        each.name: (each.stat().st_ino, DIRECTORY if each.is_dir() else FILE) for each in folder.iterdir()
    }
