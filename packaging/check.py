"""Check what is in `dist/`, without installing it: `python packaging/check.py [DIRECTORY]`.

Metadata (twine), the systems that the kernels need (auditwheel for Linux, the file's own words for macOS),
what is in each wheel and what is not, and the size.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 6_000_000
OLDEST_GLIBC = (2, 17)
OLDEST_MACOS = 11
OF_EACH_MUSL = {
    "bcmp",
    "calloc",
    "free",
    "malloc",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "realloc",
    "strrchr",
}
MACH_O_64 = 0xFEEDFACF
LOAD_DYLIB, BUILD_VERSION, VERSION_MIN, CODE_SIGNATURE = 0x0C, 0x32, 0x24, 0x1D
# What a wheel may hold beside Python: data of the console, types, the kernel.
ALLOWED = re.compile(
    r"(ottla|pyspark_ottla)/[\w/-]+\.py|ottla/py\.typed|ottla/records/_kernel\.pyi|ottla/console/static/[\w./-]+"
    r"|ottla/records/_kernel\.cpython-\d+-[\w-]+\.so|ottla-[\w.]+\.dist-info/[\w./-]+"
)
IN_SOURCES = (
    "pyproject.toml",
    "setup.py",
    "LICENSE",
    "src/ottla/records/_kernel.pyx",
    "src/ottla/records/kernel/wire.pxi",
)


def main() -> None:
    directory = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist"
    files = sorted(path for path in directory.iterdir() if path.suffix in (".whl", ".gz"))
    if not files:
        sys.exit(f"There is nothing in {directory}. Build it first: python packaging/wheels.py")
    faults = [f"{path.name}: {fault}" for path in files for fault in faults_of(path)]
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)],
        check=False,
        capture_output=True,
        text=True,
    )
    if checked.returncode:
        faults.append(checked.stdout + checked.stderr)
    largest = max(files, key=lambda path: path.stat().st_size)
    print(f"{len(files)} files checked; the largest has {largest.stat().st_size / 1e6:.1f} MB")
    if faults:
        sys.exit("\n".join(faults))


def faults_of(path: Path) -> Iterator[str]:
    if path.stat().st_size > MAX_BYTES:
        yield f"has {path.stat().st_size} bytes, more than {MAX_BYTES}"
    if path.suffix == ".gz":
        yield from faults_of_sources(path)
        return
    with ZipFile(path) as wheel:
        names = wheel.namelist()
        yield from (f"holds {name}" for name in names if not ALLOWED.fullmatch(name))
        kernels = [name for name in names if name.endswith(".so")]
        slow = "ottla/records/_kernel.py" in names
        if (len(kernels), slow) != ((0, True) if "-any.whl" in path.name else (1, False)):
            yield f"has kernels {kernels}, {'and' if slow else 'without'} the slow one"
            return
        kernel = wheel.read(kernels[0]) if kernels else b""
    if "linux" in path.name:
        yield from faults_on_linux(path)
        if "musl" in path.name:
            yield from faults_on_musl(kernel)
    elif "macos" in path.name:
        yield from faults_on_macos(kernel, arm="arm64" in path.name)


def faults_of_sources(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    yield from (f"does not hold {name}" for name in IN_SOURCES if name not in names)
    for name in names:
        if name.startswith(("tests/", "bench/")) or name.endswith((".c", ".so")):
            yield f"holds {name}"


def faults_on_linux(path: Path) -> Iterator[str]:
    """What auditwheel says that the wheel runs on is as old as its name says."""
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(path)], check=False, capture_output=True, text=True
    )
    words = " ".join(shown.stdout.split())
    found = re.search(r'following platform tag: "(\w+?)_(\d+)_(\d+)_(x86_64|aarch64)"', words)
    if found is None:
        yield f"auditwheel does not know where it runs: {words} {shown.stderr}"
        return
    kind, version, machine = found[1], (int(found[2]), int(found[3])), found[4]
    oldest = OLDEST_GLIBC if kind == "manylinux" else (1, 2)
    if version > oldest or not re.search(rf"{kind}_{oldest[0]}_{oldest[1]}_{machine}", path.name):
        yield f"is for {kind} {version} on {machine} by auditwheel"


def faults_on_musl(kernel: bytes) -> Iterator[str]:
    """The kernel takes from libc only what each musl has, as their symbols have no versions."""
    from elftools.elf.elffile import ELFFile  # comes with auditwheel

    symbols = ELFFile(BytesIO(kernel)).get_section_by_name(".dynsym").iter_symbols()
    needed = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}
    for name in sorted(needed - OF_EACH_MUSL):
        if not name.startswith(("Py", "_Py")):
            yield f"its kernel needs {name}, which an old musl may lack"


def faults_on_macos(kernel: bytes, *, arm: bool) -> Iterator[str]:
    """The commands for macOS' loader: the processor, the oldest system, libraries, and on ARM a signature."""
    magic, processor, _, _, count, _ = struct.unpack_from("<6I", kernel)
    if magic != MACH_O_64 or processor != (0x0100000C if arm else 0x01000007):
        yield f"its kernel is for another processor ({magic:x}, {processor:x})"
        return
    oldest, signed, at = None, False, 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", kernel, at)
        if command & 0xFF == LOAD_DYLIB:
            start = at + struct.unpack_from("<I", kernel, at + 8)[0]
            library = kernel[start : kernel.index(0, start)].decode()
            if library != "/usr/lib/libSystem.B.dylib":
                yield f"its kernel needs {library}"
        elif command == BUILD_VERSION:
            oldest = struct.unpack_from("<I", kernel, at + 12)[0] >> 16
        elif command == VERSION_MIN:
            oldest = struct.unpack_from("<I", kernel, at + 8)[0] >> 16
        signed = signed or command == CODE_SIGNATURE
        at += size
    if oldest is None or oldest > OLDEST_MACOS:
        yield f"its kernel needs macOS {oldest}"
    if arm and not signed:
        yield "its kernel has no signature, which macOS asks for on ARM"


if __name__ == "__main__":
    main()
