"""Look at the machine: Python, what is installed, limits of the process, the system."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from ottla.cli.diagnosis import Diagnosis, doubtful, fine, wrong

FEW_FILES: Final = 10_000
LITTLE_MEMORY_BYTES: Final = 256 * 1024 * 1024
# A clock before the first version of this program is wrong.
_EARLIEST_S: Final = 1_735_689_600
_OLDEST_LINUX: Final = (4, 14)
_MEMORY_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def check_machine() -> Iterator[Diagnosis]:
    yield check_python(sys.version_info[:3])
    yield check_kernel_module()
    yield from check_packages(_required())
    yield from check_system(_system_release())
    yield check_open_files(_open_file_limit())
    yield check_memory(_memory_limit())
    yield from check_clock(time.time())


def check_python(version: tuple[int, int, int]) -> Diagnosis:
    text = ".".join(map(str, version))
    if version < (3, 11):
        return wrong(
            "python", f"Python {text} is too old", "install Python 3.11 or newer: `uv python install 3.13`"
        )
    return fine("python", f"Python {text} at {sys.executable}")


def check_kernel_module() -> Diagnosis:
    from ottla.records import _kernel

    if str(_kernel.__file__).endswith(".py"):
        return wrong(
            "kernel",
            "Ottla's compiled kernel is missing, so clients are slow, and nodes, Arrow and tables do "
            "not work",
            "install a wheel for this system: `pip install --force-reinstall --only-binary ottla "
            "ottla`; or, with a C "
            "compiler, `pip install .` in a checkout",
        )
    return fine("kernel", "compiled")


def check_packages(required: list[str]) -> Iterator[Diagnosis]:
    missing = [name for name in required if not _is_installed(name)]
    if missing:
        yield wrong(
            "packages",
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            f"`{sys.executable} -m pip install {' '.join(missing)}`",
        )
    elif required:
        yield fine("packages", f"all {len(required)} are installed")


def check_system(release: tuple[int, int] | None) -> Iterator[Diagnosis]:
    if sys.platform == "win32":
        yield wrong("system", "Windows is not supported", "use WSL: `wsl --install`, and Ottla in it")
    elif release is not None and release < _OLDEST_LINUX:
        yield doubtful(
            "system",
            f"Linux {release[0]}.{release[1]} does not tell a node what is in its page cache, so slow "
            "reads hold up others",
            "use a system with Linux 4.14 or newer",
        )


def check_open_files(limit: int) -> Diagnosis:
    if limit < FEW_FILES:
        return doubtful(
            "open files",
            f"a node may open {limit} files, and needs three for each partition and one for each connection",
            "`ulimit -n 100000` in the shell, or LimitNOFILE=100000 in the systemd unit; at least "
            f"{FEW_FILES}",
        )
    return fine("open files", f"up to {limit}")


def check_memory(limit: int | None) -> Diagnosis:
    if limit is not None and limit < LITTLE_MEMORY_BYTES:
        return doubtful(
            "memory",
            f"the container may use {limit >> 20} MiB, and is killed at the first that is more",
            f"give it {LITTLE_MEMORY_BYTES >> 20} MiB or more: `docker run --memory 512m`, or "
            "resources.limits.memory",
        )
    return fine("memory", "no limit of a container" if limit is None else f"up to {limit >> 20} MiB")


def check_clock(now_s: float) -> Iterator[Diagnosis]:
    if now_s < _EARLIEST_S:
        day = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        yield wrong(
            "clock",
            f"it says {day}: records get wrong timestamps, and certificates are not valid yet",
            "`timedatectl set-ntp true`, or set the clock by hand",
        )


def _required() -> list[str]:
    """What the installed package needs on this system, by name; nothing in a checkout."""
    try:
        lines = metadata.requires("ottla") or []
    except metadata.PackageNotFoundError:
        return []
    plain = (line for line in lines if ";" not in line)
    return [line.split("=")[0].rstrip("<>!~").split("[")[0].strip() for line in plain]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _system_release() -> tuple[int, int] | None:
    import platform

    if platform.system() != "Linux":
        return None
    major, _, rest = platform.release().partition(".")
    minor = rest.split(".")[0].split("-")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _open_file_limit() -> int:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _memory_limit() -> int | None:
    for path in _MEMORY_LIMITS:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        # Where there is none, the first says "max", the second a number near to 2**63.
        if text.isdecimal() and int(text) < 1 << 60:
            return int(text)
    return None
