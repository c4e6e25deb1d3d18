"""CRC-32C, by the compiled half of the `crc32c` package.

The package, when it is imported, reads its own version from its metadata and builds a command line, and for
that loads a mail parser, a zip reader and an option parser: a seventh of the time in which a node starts. So
its extension module is loaded by its place, and the package itself only where that place is not known.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Protocol, cast

from ottla.runtime.disk import Buffer


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0) -> int:
        """The checksum of `data`; `value` is the checksum of the bytes before it."""


def _load() -> Checksum:
    package = PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        spec = PathFinder.find_spec("crc32c._crc32c", list(package.submodule_search_locations))
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return cast("Checksum", module.crc32c)
    import crc32c

    return cast("Checksum", crc32c.crc32c)


crc32c = _load()
