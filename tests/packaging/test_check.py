"""What `make dist` checks of a wheel: what is in it, and where its kernel loads."""

from __future__ import annotations

import struct
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"


def load() -> ModuleType:
    spec = spec_from_file_location("check_of_wheels", PACKAGING / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = load()

ANY = "ottla-0.1.0-py3-none-any.whl"
MAC = "ottla-0.1.0-cp313-cp313-macosx_11_0_arm64.whl"
KERNEL = "ottla/records/_kernel.cpython-313-darwin.so"
SLOW = "ottla/records/_kernel.py"
SOUND = (
    "ottla/__init__.py",
    "ottla/py.typed",
    "ottla/console/static/lib/api.js",
    "ottla-0.1.0.dist-info/METADATA",
)


def mach_o(
    *, arm: bool = True, oldest: int = 11, library: str = "/usr/lib/libSystem.B.dylib", signed: bool = True
) -> bytes:
    """The head of a library for macOS: what its loader reads first."""
    name = library.encode() + b"\0"
    name += bytes(-len(name) % 8)
    commands = [
        struct.pack("<6I", check.LOAD_DYLIB, 24 + len(name), 24, 0, 0, 0) + name,
        struct.pack("<6I", check.BUILD_VERSION, 24, 1, oldest << 16, oldest << 16, 0),
    ]
    if signed:
        commands.append(struct.pack("<4I", check.CODE_SIGNATURE, 16, 0, 0))
    head = struct.pack(
        "<6I2I", check.MACH_O_64, 0x0100000C if arm else 0x01000007, 0, 6, len(commands), 0, 0, 0
    )
    return head + b"".join(commands)


def faults(directory: Path, name: str, files: dict[str, bytes]) -> list[str]:
    with ZipFile(directory / name, "w") as wheel:
        for file in SOUND:
            wheel.writestr(file, b"")
        for file, content in files.items():
            wheel.writestr(file, content)
    return list(check.faults_of(directory / name))


def test_sound_wheels_have_no_faults(tmp_path: Path) -> None:
    assert faults(tmp_path, ANY, {SLOW: b""}) == []
    assert faults(tmp_path, MAC, {KERNEL: mach_o()}) == []


@pytest.mark.parametrize(
    "file", ["tests/test_it.py", "bench/node.py", "ottla/records/_kernel.pyx", "ottla/records/_kernel.c"]
)
def test_a_wheel_holds_neither_tests_nor_sources(tmp_path: Path, file: str) -> None:
    assert faults(tmp_path, ANY, {SLOW: b"", file: b""}) == [f"holds {file}"]


def test_a_wheel_has_the_kernel_of_its_kind(tmp_path: Path) -> None:
    assert len(faults(tmp_path, ANY, {})) == 1
    assert len(faults(tmp_path, ANY, {SLOW: b"", KERNEL: mach_o()})) == 1
    assert len(faults(tmp_path, MAC, {SLOW: b""})) == 1
    assert len(faults(tmp_path, MAC, {SLOW: b"", KERNEL: mach_o()})) == 1


def test_a_wheel_is_small(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, ANY, {SLOW: bytes(check.MAX_BYTES)})
    assert "more than 6000000" in fault


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        (mach_o(arm=False), "another processor"),
        (mach_o(oldest=14), "needs macOS 14"),
        (mach_o(library="/opt/lib/libz.dylib"), "needs /opt/lib/libz.dylib"),
        (mach_o(signed=False), "no signature"),
    ],
)
def test_a_kernel_for_macos_loads_on_what_the_name_says(tmp_path: Path, kernel: bytes, fault: str) -> None:
    (found,) = faults(tmp_path, MAC, {KERNEL: kernel})
    assert fault in found
