"""The house stands as drawn: floors, doors and sizes hold in `src/ottla`, and each check is able to fail."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.house import checks
from tests.house.checks import FLOORS, Module

SOURCE = Path(__file__).parents[2] / "src" / "ottla"
# Long on purpose: path below src/ -> why. Tables may be long; code may not.
LONG_MODULES: dict[str, str] = {}


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    found = checks.load(SOURCE)
    assert len(found) > 20
    return found


def module(name: str, source: str, *, package: bool = False) -> Module:
    path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
    return Module(name, path, source)


def hold(breaches: Iterable[str]) -> None:
    found = list(breaches)
    assert not found, "\n" + "\n".join(found)


class TestTheHouse:
    def test_lower_floors_never_import_higher_ones(self, modules: list[Module]) -> None:
        hold(checks.floor_breaches(modules))

    def test_no_modules_import_each_other(self, modules: list[Module]) -> None:
        hold(checks.cycle_breaches(modules))

    def test_only_the_runtime_opens_doors_to_the_world(self, modules: list[Module]) -> None:
        hold(checks.door_breaches(modules))

    def test_compiled_code_opens_no_doors_either(self) -> None:
        compiled = [*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxi"), *SOURCE.rglob("*.pxd")]
        assert compiled
        for path in compiled:
            hold(checks.compiled_door_breaches(str(path), path.read_text()))

    def test_modules_are_of_one_idea(self) -> None:
        paths = [path for suffix in ("py", "pyx", "pxi") for path in SOURCE.rglob(f"*.{suffix}")]
        lines = {path.relative_to(SOURCE.parent).as_posix(): path.read_text().count("\n") for path in paths}
        hold(checks.size_breaches(lines, LONG_MODULES))

    def test_every_room_on_the_plan_has_a_floor(self) -> None:
        rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
        assert rooms
        assert rooms <= set(FLOORS)


class TestFloorCheck:
    @pytest.mark.parametrize(
        "source",
        [
            "import ottla.node.network.server",
            "from ottla.node import server",
            "from ottla import node",
            "from ..node.server import Server",
            "from .. import node",
            "def f():\n    from ottla.node import server",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ottla.node import server",
            "import importlib\nserver = importlib.import_module('ottla.node.network.server')",
            "class A:\n    import ottla.node",
        ],
    )
    def test_an_import_of_a_higher_floor_is_found_in_any_form(self, source: str) -> None:
        (breach,) = checks.floor_breaches([module("ottla.log.local_log", source)])
        assert breach.startswith("ottla/log/local_log.py:")
        assert "log imports ottla.node" in breach

    def test_relative_imports_are_read_from_a_package_as_well(self) -> None:
        assert list(checks.floor_breaches([module("ottla.log", "from ..node import x", package=True)]))
        assert not list(checks.floor_breaches([module("ottla.log", "from .segment import x", package=True)]))

    def test_imports_of_lower_floors_of_the_own_and_of_others_are_fine(self) -> None:
        source = (
            "import json\nfrom ottla.log import x\nfrom ottla.node import y\nfrom ottla import __version__"
        )
        assert list(checks.floor_breaches([module("ottla.node.node", source)])) == []

    def test_a_client_must_not_know_the_node(self) -> None:
        (breach,) = checks.floor_breaches([module("ottla.client.admin", "import ottla.node.network.server")])
        assert "client must not know node" in breach

    def test_running_the_package_is_the_command_line(self) -> None:
        assert list(checks.floor_breaches([module("ottla.__main__", "import ottla.cli.main")])) == []

    def test_an_unknown_room_is_a_breach(self) -> None:
        (breach,) = checks.floor_breaches([module("ottla.utils.misc", "")])
        assert "'utils' has no floor" in breach

    def test_the_package_itself_may_import_only_lazily(self) -> None:
        lazy = "def __getattr__(name):\n    from ottla.client import Producer\n    return Producer"
        assert list(checks.floor_breaches([module("ottla", lazy, package=True)])) == []
        (breach,) = checks.floor_breaches(
            [module("ottla", "from ottla.client import Producer", package=True)]
        )
        assert "make it lazy" in breach


class TestCycleCheck:
    def test_modules_that_import_each_other_are_found(self) -> None:
        (breach,) = checks.cycle_breaches(
            [
                module("ottla.log.a", "from ottla.log.b import x"),
                module("ottla.log.b", "from ottla.log import c"),
                module("ottla.log.c", "import ottla.log.a"),
                module("ottla.log.d", "import ottla.log.a"),
                module("ottla.log", "", package=True),
            ]
        )
        assert breach == "import cycle between ottla.log.a, ottla.log.b, ottla.log.c"

    def test_imports_at_call_time_and_for_types_make_no_cycle(self) -> None:
        source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ottla.log.a import x"
        back = "def f():\n    import ottla.log.b"
        assert list(checks.cycle_breaches([module("ottla.log.a", back), module("ottla.log.b", source)])) == []


class TestDoorCheck:
    @pytest.mark.parametrize(
        "source",
        [
            "import time",
            "from time import monotonic",
            "import os",
            "import os.path",
            "from os import path",
            "import random",
            "import socket",
            "import threading",
            "from concurrent.futures import ThreadPoolExecutor",
            "import select",
            "import ssl",
            "import uvloop",
            "from pathlib import Path",
            "from uuid import uuid4",
            "def f():\n    import time",
            "open('file')",
            "import io\nio.open('file')",
            "import asyncio\nasyncio.open_connection('host', 1)",
            "from asyncio import to_thread",
            "async def f():\n    await asyncio.get_running_loop().getaddrinfo('host', 1)",
            "async def f(loop):\n    await loop.run_in_executor(None, print)",
            "async def f(self):\n    await self.loop.create_server(None)",
            "from datetime import datetime\ndatetime.now()",
            "import datetime\ndatetime.datetime.now(datetime.UTC)",
            "datetime.utcnow()",
            "date.today()",
        ],
    )
    def test_a_way_around_the_runtime_is_found(self, source: str) -> None:
        assert list(checks.door_breaches([module("ottla.log.unified_log", source)]))

    @pytest.mark.parametrize(
        "source",
        [
            "import asyncio, struct, logging, posixpath, io, bisect",
            "def f(disk):\n    return disk.open('file')",
            "def f(clock):\n    return clock.wall_ms()",
            "async def f(self):\n    return await self.open_connection()",
            "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
            "from ottla.runtime.clock import Clock",
            "from pathlib import PurePosixPath",
            "import timeit_like_name",
        ],
    )
    def test_what_touches_nothing_is_fine(self, source: str) -> None:
        assert list(checks.door_breaches([module("ottla.log.unified_log", source)])) == []

    @pytest.mark.parametrize("room", sorted(checks.OPEN_ROOMS))
    def test_open_rooms_may_touch_the_world(self, room: str) -> None:
        assert list(checks.door_breaches([module(f"ottla.{room}.main", "import os, time\nopen('x')")])) == []

    def test_tls_contexts_belong_to_security(self) -> None:
        assert list(checks.door_breaches([module("ottla.security.tls", "import ssl")])) == []
        assert list(checks.door_breaches([module("ottla.security.tls", "import socket")]))

    def test_compiled_code_is_read_by_its_import_lines(self) -> None:
        source = (
            "cimport cython\nfrom libc.string cimport memcpy\nimport time\nfrom libc.stdio cimport fopen\n"
        )
        assert [line.split(" ")[0] for line in checks.compiled_door_breaches("k.pyx", source)] == [
            "k.pyx:3:",
            "k.pyx:4:",
        ]


class TestSizeCheck:
    def test_a_long_module_is_found_unless_it_is_on_the_list(self) -> None:
        lines = {"a.py": 600, "b.py": 601, "c.py": 900}
        assert list(checks.size_breaches(lines, {"c.py": "a table"})) == [
            "b.py: 601 lines, the limit is 600: split it by its ideas"
        ]

    def test_an_exception_that_is_not_needed_is_found(self) -> None:
        (breach,) = checks.size_breaches({"a.py": 10}, {"a.py": "was long once"})
        assert "take it off the list" in breach
