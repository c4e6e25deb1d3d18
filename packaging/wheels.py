"""Build what is released into `dist/`: the source distribution and a wheel for each Python and platform.

    python packaging/wheels.py [--python 3.11 ...] [--headers 3.14=DIRECTORY ...]

The wheels differ by one file, the compiled kernel. So setuptools builds the wheel without it once, and each
other is that wheel with a kernel, which Zig compiles for its platform on this machine. The headers of a
Python come from an interpreter of that version, wherever it is found. Those of one platform do for all: every
platform here has the same sizes of C's types, which the compiler is made to check.

The same commit gives the same bytes: times are those of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import ZipInfo

from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ANY = "py3-none-any"
KERNEL = "ottla/records/_kernel"
SLOW_KERNEL = f"{KERNEL}.py"
COMPILE = ("-fPIC", "-O3", "-g0", "-DNDEBUG", "-fwrapv", "-fno-sanitize=undefined")
LINK = ("-shared", "-s")
CHECKED_SIZES = """\
#include <Python.h>
#include <time.h>
_Static_assert(
    SIZEOF_INT == sizeof(int) && SIZEOF_LONG == sizeof(long) && SIZEOF_LONG_LONG == sizeof(long long)
    && SIZEOF_VOID_P == sizeof(void*) && SIZEOF_SIZE_T == sizeof(size_t) && SIZEOF_WCHAR_T == sizeof(wchar_t)
    && SIZEOF_TIME_T == sizeof(time_t) && SIZEOF_DOUBLE == sizeof(double),
    "the headers of this Python are those of a platform with other sizes");
"""


@dataclass(frozen=True)
class Platform:
    """A platform that wheels are made for."""

    tags: str
    """As in the name of a wheel, the oldest system that it runs on included."""
    target: str
    """Zig's name of it."""
    suffix: str
    """What Python puts behind the version in the name of a compiled module."""
    has_re2: bool = True
    """Whether google-re2 has wheels for it. Without, the node works, and refuses what needs it."""


PLATFORMS = (
    Platform("manylinux_2_17_x86_64.manylinux2014_x86_64", "x86_64-linux-gnu.2.17", "-x86_64-linux-gnu"),
    Platform("manylinux_2_17_aarch64.manylinux2014_aarch64", "aarch64-linux-gnu.2.17", "-aarch64-linux-gnu"),
    Platform("musllinux_1_2_x86_64", "x86_64-linux-musl", "-x86_64-linux-musl", has_re2=False),
    Platform("musllinux_1_2_aarch64", "aarch64-linux-musl", "-aarch64-linux-musl", has_re2=False),
    Platform("macosx_11_0_x86_64", "x86_64-macos.11.0", "-darwin"),
    Platform("macosx_11_0_arm64", "aarch64-macos.11.0", "-darwin"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, choices=PYTHONS, help="default: all")
    parser.add_argument(
        "--headers", nargs="+", default=[], metavar="VERSION=DIRECTORY", help="of a Python's Python.h"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    given = {version: Path(path) for version, _, path in (text.partition("=") for text in arguments.headers)}
    headers = {version: copied_headers(version, given.get(version)) for version in arguments.python}
    os.environ.setdefault("SOURCE_DATE_EPOCH", output("git", "log", "-1", "--format=%ct"))
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    sources = built("sdist", arguments.out)
    set_times(sources)
    print(sources.name)
    shutil.rmtree(WORK / "plain", ignore_errors=True)
    plain = built("wheel", WORK / "plain", OTTLA_KERNEL="python")
    print(write_wheel(plain, arguments.out, ANY, has_re2=False).name)
    code = WORK / "_kernel.c"
    run(sys.executable, "-m", "cython", "-3", "src/ottla/records/_kernel.pyx", "-o", str(code))
    for version, directory in headers.items():
        python = "cp" + version.replace(".", "")
        for platform in PLATFORMS:
            name = f"{KERNEL}.cpython-{python.removeprefix('cp')}{platform.suffix}.so"
            kernel = name, compiled(code, platform, version, directory)
            tag = f"{python}-{python}-{platform.tags}"
            path = write_wheel(plain, arguments.out, tag, has_re2=platform.has_re2, kernel=kernel)
            print(path.name, flush=True)


def copied_headers(version: str, given: Path | None) -> Path:
    """The headers of a Python, away from the system's own, which are those of another platform."""
    include = given or installed_headers(version)
    if not (include / "Python.h").is_file():
        sys.exit(f"There is no Python.h in {include}; give its directory by --headers {version}=DIRECTORY")
    copy = WORK / "headers" / version
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(include, copy)
    # Debian's file names another one, in the directory of the machine's platform.
    real = include.parent / "x86_64-linux-gnu" / include.name / "pyconfig.h"
    if real.is_file():
        shutil.copy(real, copy / "pyconfig.h")
    (copy / "checked_sizes.h").write_text(CHECKED_SIZES)
    return copy


def interpreters(version: str) -> Iterator[str]:
    """The Pythons of this version: one on the PATH, and those that pyenv installed."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in (f"python{version}", *map(str, sorted(managed.glob(f"{version}.*/bin/python{version}")))):
        try:
            yield output(python, "-c", "import sys; print(sys.executable)", quiet=True)
        except (OSError, subprocess.CalledProcessError):
            continue


def installed_headers(version: str) -> Path:
    for python in interpreters(version):
        found = Path(output(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"))
        if (found / "Python.h").is_file():
            return found
    sys.exit(
        f"No headers of Python {version} were found. Install it with its headers, give them by "
        f"--headers {version}=DIRECTORY, or leave it out by --python."
    )


def built(kind: str, out: Path, **environment: str) -> Path:
    """The distribution that setuptools builds from a clean copy of what is committed."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.iterdir())
    command = (sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out), str(tree))
    log = subprocess.run(
        command, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )
    if log.returncode:
        sys.exit(log.stdout + log.stderr)
    (made,) = set(out.iterdir()) - before
    return made


def set_times(sources: Path) -> None:
    """Give all files of a source distribution the time of the commit, also those that were made meanwhile."""
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    content = BytesIO()
    with tarfile.open(sources) as given, tarfile.open(fileobj=content, mode="w") as made:
        for entry in sorted(given.getmembers(), key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = time, 0, 0, "", ""
            entry.pax_headers = {}  # which have the time too
            made.addfile(entry, given.extractfile(entry) if entry.isfile() else None)
    sources.write_bytes(gzip.compress(content.getvalue(), mtime=time))


def compiled(code: Path, platform: Platform, version: str, headers: Path) -> bytes:
    """The kernel for one platform and Python."""
    library = WORK / f"{platform.target}-{version}.so"
    cc = (sys.executable, "-m", "ziglang", "cc", "-target", platform.target)
    checks = (f"-I{headers}", "-include", str(headers / "checked_sizes.h"))
    source = str(code.relative_to(ROOT))
    if "macos" in platform.target:
        run(*cc, *COMPILE, *LINK, "-Wl,-undefined,dynamic_lookup", *checks, source, "-o", str(library))
    elif "musl" in platform.target:
        # Without the name of a library: that of musl differs by distribution, and Python has loaded it.
        unlinked = library.with_suffix(".o")
        run(*cc, *COMPILE, *checks, "-c", source, "-o", str(unlinked))
        run(*cc, *LINK, "-nostdlib", str(unlinked), "-o", str(library))
    else:
        run(*cc, *COMPILE, *LINK, *checks, source, "-o", str(library))
    return library.read_bytes()


def write_wheel(
    built: Path, out: Path, tag: str, *, has_re2: bool, kernel: tuple[str, bytes] | None = None
) -> Path:
    """The built wheel for one Python and platform, with a compiled kernel in place of the slow one."""
    python, abi, platforms = tag.split("-")
    path = out / built.name.replace(ANY, tag)
    with WheelFile(built) as source, WheelFile(path, "w") as target:
        entries = source.infolist()
        for entry in entries:
            content = source.read(entry)
            if entry.filename.endswith(".dist-info/RECORD") or (kernel and entry.filename == SLOW_KERNEL):
                continue
            if entry.filename.endswith(".dist-info/WHEEL") and kernel:
                tags = "".join(f"Tag: {python}-{abi}-{platform}\n" for platform in platforms.split("."))
                text = content.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                content = text.replace(f"Tag: {ANY}\n", tags).encode()
            elif entry.filename.endswith(".dist-info/METADATA") and not has_re2:
                content = re.sub(rb"Requires-Dist: google-re2[^;\n]*\n", b"", content)
            target.writestr(entry, content)
        if kernel:
            name, content = kernel
            entry = ZipInfo(name, entries[0].date_time)
            entry.external_attr = 0o100755 << 16
            entry.compress_type = entries[0].compress_type
            target.writestr(entry, content)
    return path


def run(*command: str) -> None:
    cache = str(WORK / "zig")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def output(*command: str, quiet: bool = False) -> str:
    errors = subprocess.DEVNULL if quiet else None
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=errors, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
