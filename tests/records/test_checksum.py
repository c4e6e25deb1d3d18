"""The checksum, wherever it is found."""

from __future__ import annotations

from importlib.machinery import ModuleSpec, PathFinder

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import checksum


@given(st.binary(max_size=300), st.integers(0, 300))
def test_it_is_that_of_the_package(data: bytes, at: int) -> None:
    whole = package.crc32c(data)
    assert checksum.crc32c(data) == whole
    assert checksum.crc32c(memoryview(data)[at:], checksum.crc32c(data[:at])) == whole


def test_its_check_value() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("missing", ["crc32c", "crc32c._crc32c"])
def test_without_its_place_the_package_serves(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    find = PathFinder.find_spec

    def lost(name: str, path: list[str] | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, path)

    monkeypatch.setattr(PathFinder, "find_spec", lost)
    assert checksum._load() is package.crc32c
