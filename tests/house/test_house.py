"""The rules of the house hold in `src/ottla`: floors, doors, cycles, names; and each check can fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.house import allowances, checks
from tests.house.checks import FLOORS, Module
from tests.support.rows import for_each

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ottla"


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    found = checks.load(SOURCE)
    assert len(found) > 20
    return found


def module(name: str, source: str, *, package: bool = False) -> Module:
    path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
    return Module(name, path, source)


def texts() -> Iterator[Path]:
    """Code and documents, except for the rules about their words themselves."""
    for room in ("src", "tests", "bench", "docs", "examples"):
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".pyx", ".pxi", ".md") and path.parent != Path(__file__).parent:
                yield path


def hold(breaches: Iterable[str]) -> None:
    found = list(breaches)
    assert not found, "\n" + "\n".join(found)


# Names that engineers who know Apache Kafka look for, of things that are here.
KAFKA_NAMES = (
    *("AclControlManager", "ApiVersionManager", "AsyncKafkaConsumer", "BatchAccumulator", "BrokerServer"),
    *("ClientQuotaControlManager", "ClusterControlManager", "ConfigDef", "ConfigurationControlManager"),
    *("ConfigurationsImage", "ControllerRegistrationManager", "ControllerServer", "CoordinatorRuntime"),
    *(
        "DelegationTokenControlManager",
        "FeatureControlManager",
        "GroupMetadataManager",
        "KRaftMigrationDriver",
    ),
    *("KafkaApis", "KafkaMetadataLog", "KafkaRaftClient", "LogDirFailureChannel", "LogValidator"),
    *("PersisterStateManager", "ProducerIdControlManager", "RemoteIndexCache", "RemoteLogManager"),
    *("ReplicaManager", "ReplicationControlManager", "ScramControlManager", "SharePartitionManager"),
    *("SharedServer", "TransactionMarkerChannelManager", "TransactionStateManager", "UnifiedLog"),
)


class TestTheHouse:
    def test_lower_floors_never_import_higher_ones(self, modules: list[Module]) -> None:
        hold(checks.floor_breaches(modules))

    def test_a_broker_does_not_name_its_optional_parts(self, modules: list[Module]) -> None:
        hold(checks.extension_breaches(modules))

    def test_no_modules_import_each_other_when_they_are_imported(self, modules: list[Module]) -> None:
        hold(checks.cycle_breaches(checks.module_cycles(modules, eager_only=True), (), (), "modules"))

    def test_no_modules_import_each_other_at_all(self, modules: list[Module]) -> None:
        cycles = checks.module_cycles(modules)
        hold(
            checks.cycle_breaches(
                cycles,
                allowances.MODULES_THAT_BELONG_TOGETHER,
                allowances.ROOMS_WITH_MODULE_CYCLES,
                "modules",
            )
        )

    def test_no_packages_import_each_other(self, modules: list[Module]) -> None:
        cycles = checks.package_cycles(modules)
        hold(checks.cycle_breaches(cycles, (), allowances.ROOMS_WITH_PACKAGE_CYCLES, "packages"))

    def test_a_public_class_name_means_one_thing(self, modules: list[Module]) -> None:
        found = checks.duplicated_names(modules)
        hold(
            f"{name} is defined by {', '.join(paths)}"
            for name, paths in found.items()
            if name not in allowances.DUPLICATED_NAMES
        )

    @pytest.mark.slow
    def test_tests_and_measurements_import_what_exists(self, modules: list[Module]) -> None:
        by_name = {module.name: module for module in modules}
        paths = [
            path for room in ("tests", "bench", "examples") for path in sorted((ROOT / room).rglob("*.py"))
        ]
        assert len(paths) > 100
        hold(
            breach
            for path in paths
            for breach in checks.dead_imports(path.relative_to(ROOT).as_posix(), path.read_text(), by_name)
        )

    @for_each("name", KAFKA_NAMES)
    def test_grep_finds_what_kafka_calls_a_thing(self, modules: list[Module], name: str) -> None:
        assert any(re.search(rf"\b{name}\b", each.source) for each in modules)

    def test_each_version_of_an_api_has_a_line_of_its_own(self, modules: list[Module]) -> None:
        hold(checks.version_breaches(modules))

    def test_texts_use_plain_words_and_one_markup(self) -> None:
        for path in sorted(texts()):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text()
            hold(checks.word_breaches(name, text))
            if path.suffix != ".md":
                hold(checks.markup_breaches(name, text))

    def test_only_the_runtime_opens_doors_to_the_world(self, modules: list[Module]) -> None:
        hold(checks.door_breaches(modules))

    def test_state_machines_hold_no_clock_and_await_nothing(self, modules: list[Module]) -> None:
        hold(checks.purity_breaches(modules))

    def test_each_long_lived_task_of_a_node_has_a_supervisor(self, modules: list[Module]) -> None:
        hold(
            f"{where}, line {line}: starts a task or a timer: use TaskSupervisor, or list it with the reason"
            for where, line in checks.unsupervised_tasks(modules).items()
            if where not in allowances.UNSUPERVISED_TASKS
        )

    def test_what_a_client_can_make_costly_has_an_estimate(self, modules: list[Module]) -> None:
        hold(
            f"{where}, line {line}: calls what a client can make costly: give it an estimate and let it pass "
            "`ottla.runtime.heavy_work`, or list it with what bounds it"
            for where, line in checks.costly_calls(modules).items()
            if where not in allowances.COSTLY_CALLS
        )

    def test_patterns_that_others_may_give_are_for_re2(self, modules: list[Module]) -> None:
        hold(
            f"{where}, line {line}: a pattern that is not written here: use re2, or list it with the reason"
            for where, line in checks.pattern_breaches(modules)
            if where not in allowances.PATTERNS_OF_OPERATORS
        )

    def test_compiled_code_opens_no_doors_either(self) -> None:
        compiled = [*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxi"), *SOURCE.rglob("*.pxd")]
        assert compiled
        for path in compiled:
            hold(checks.compiled_door_breaches(str(path), path.read_text()))

    def test_every_room_on_the_plan_has_a_floor(self) -> None:
        rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
        assert rooms
        assert rooms <= set(FLOORS)


class TestPatternCheck:
    @pytest.mark.parametrize(
        ("call", "is_found"),
        [
            ("re.search(pattern, text)", True),
            ("re.compile(f'{name}$')", True),
            ("re.compile(r'[a-z]+')", False),
            ("re2.compile(pattern)", False),
            ("re.escape(name)", False),
        ],
    )
    def test_a_pattern_of_others_is_found_in_a_room_of_the_node(self, call: str, is_found: bool) -> None:
        source = f"def f(): {call}"
        assert bool(list(checks.pattern_breaches([module("ottla.schemas.x", source)]))) is is_found
        assert not list(checks.pattern_breaches([module("ottla.cli.x", source)]))


class TestTaskCheck:
    @pytest.mark.parametrize(
        "start",
        [
            "asyncio.create_task(work())",
            "asyncio.get_running_loop().create_task(work())",
            "self.task = asyncio.ensure_future(work())",
            "loop.call_later(1, self.again)",
            "lambda: loop.call_soon(self.again)",
            "threading.Thread(target=work).start()",
        ],
    )
    def test_a_task_without_a_supervisor_is_found_in_a_room_of_the_node(self, start: str) -> None:
        source = f"class A:\n    def f(self):\n        {start}"
        found = checks.unsupervised_tasks([module("ottla.node.x", source)])
        assert found == {"ottla.node.x.A.f": 3}
        assert not checks.unsupervised_tasks([module("ottla.client.x", source)])

    @pytest.mark.parametrize(
        "call", ["decompress(codec, data)", "records.read_records(data, 0)", "pool.run(payload_of, data, 0)"]
    )
    def test_a_costly_call_is_found_in_a_room_of_the_node(self, call: str) -> None:
        source = f"class A:\n    def f(self):\n        return {call}"
        assert checks.costly_calls([module("ottla.node.x", source)]) == {"ottla.node.x.A.f": 3}
        assert not checks.costly_calls([module("ottla.client.x", source)])

    @pytest.mark.parametrize(
        "versions",
        ["Version 1 has ids; 2 is flexible.", "It votes. Version 1 has ids.", "Version 2 is.\nVersion 1 is."],
    )
    def test_versions_that_share_a_line_are_found(self, versions: str) -> None:
        source = f'"""Vote.\n\n{versions}\n"""'
        assert list(checks.version_breaches([module("ottla.node.api.handlers.vote", source)]))

    def test_the_start_of_a_supervised_task_is_none(self) -> None:
        source = "class A:\n    def f(self):\n        self.tasks.start('x', self.run)"
        assert not checks.unsupervised_tasks([module("ottla.node.x", source)])


class TestPurityCheck:
    @pytest.mark.parametrize(
        "source",
        [
            "import asyncio",
            "from asyncio import sleep",
            "from ottla.runtime.clock import Clock",
            "def f():\n    from ottla.runtime.runtime import Runtime",
            "async def f():\n    pass",
        ],
    )
    def test_a_clock_a_loop_and_an_await_are_found_in_a_pure_room(self, source: str) -> None:
        (breach,) = checks.purity_breaches([module("ottla.raft.machine", source)])
        assert breach.startswith("ottla/raft/machine.py:")
        assert not list(checks.purity_breaches([module("ottla.raft.driver.kafka_raft_client", source)]))

    def test_every_pure_room_and_its_drivers_exist(self, modules: list[Module]) -> None:
        names = {each.name for each in modules}
        for room, drivers in checks.PURE_ROOMS.items():
            assert {room, *drivers} <= names


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


class TestExtensionCheck:
    @pytest.mark.parametrize(
        "source",
        [
            "from ottla.node.remote.remote_storage import RemoteStorage",
            "def f():\n    import ottla.node.tables.table_keeper",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ottla.node.telemetry import x",
            "from ottla.registry import state",
        ],
    )
    def test_an_optional_room_is_found_where_a_broker_names_it(self, source: str) -> None:
        (breach,) = checks.extension_breaches([module("ottla.node.server.broker_server", source)])
        assert "a broker has to serve without ottla." in breach
        assert list(checks.extension_breaches([module("ottla.node.remote.extension", source)])) == []

    def test_every_optional_room_exists(self, modules: list[Module]) -> None:
        names = {each.name for each in modules}
        assert {*checks.OPTIONAL_ROOMS, *checks.NAME_OPTIONAL_ROOMS} <= names


class TestCycleCheck:
    def test_modules_that_import_each_other_are_found(self) -> None:
        modules = [
            module("ottla.log.a", "from ottla.log.b import x"),
            module("ottla.log.b", "from ottla.log import c"),
            module("ottla.log.c", "import ottla.log.a"),
            module("ottla.log.d", "import ottla.log.a"),
            module("ottla.log", "", package=True),
        ]
        (cycle,) = checks.module_cycles(modules, eager_only=True)
        assert cycle == {"ottla.log.a", "ottla.log.b", "ottla.log.c"}
        (breach,) = checks.cycle_breaches([cycle], (), (), "modules")
        assert breach == "import cycle of 3 modules: ottla.log.a, ottla.log.b, ottla.log.c"

    def test_imports_at_call_time_and_for_types_count(self) -> None:
        source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ottla.log.a import x"
        back = "def f():\n    import ottla.log.b"
        modules = [module("ottla.log.a", back), module("ottla.log.b", source)]
        assert checks.module_cycles(modules) == [{"ottla.log.a", "ottla.log.b"}]
        assert checks.module_cycles(modules, eager_only=True) == []

    def test_the_public_face_of_the_package_makes_no_cycle(self) -> None:
        modules = [
            module("ottla", "def f():\n    import ottla.log.a", package=True),
            module("ottla.log.a", "from ottla import __version__"),
        ]
        assert checks.module_cycles(modules) == []
        assert checks.package_cycles(modules) == []

    def test_packages_that_import_each_other_are_found_though_their_modules_do_not(self) -> None:
        modules = [
            module("ottla.log.segment.a", "import ottla.log.epochs.b"),
            module("ottla.log.epochs.b", ""),
            module("ottla.log.epochs.c", "def f():\n    from ottla.log.segment.d import x"),
            module("ottla.log.segment.d", ""),
        ]
        assert checks.module_cycles(modules) == []
        assert checks.package_cycles(modules) == [{"ottla.log.segment", "ottla.log.epochs"}]

    def test_a_package_and_its_sub_packages_are_different_packages(self) -> None:
        down = module("ottla.log.unified_log", "import ottla.log.segment.a")
        assert checks.package_cycles([down, module("ottla.log.segment.a", "")]) == []
        up = module("ottla.log.segment.a", "from ottla.log.log_config import LogConfig")
        modules = [down, up, module("ottla.log.log_config", "")]
        assert checks.package_cycles(modules) == [{"ottla.log", "ottla.log.segment"}]

    def test_a_program_is_not_part_of_the_package_that_it_stands_in(self) -> None:
        modules = [
            module("ottla.sim.__main__", "import ottla.sim.cluster.run"),
            module("ottla.sim.cluster.run", "import ottla.sim.world"),
            module("ottla.sim.world", ""),
        ]
        assert checks.package_cycles(modules) == []

    def test_imports_inside_one_package_are_no_cycle_of_packages(self) -> None:
        modules = [module("ottla.log.a", "import ottla.log.b"), module("ottla.log.b", "import ottla.log.a")]
        assert checks.package_cycles(modules) == []

    def test_a_cycle_is_allowed_by_itself_or_by_its_room(self) -> None:
        cycle = frozenset(("ottla.log.a", "ottla.log.b"))
        assert list(checks.cycle_breaches([cycle], (), ["ottla.raft", "ottla.lo"], "modules"))
        assert list(checks.cycle_breaches([cycle], (), ["ottla.log"], "modules")) == []
        assert list(checks.cycle_breaches([cycle], [cycle], (), "modules")) == []
        assert list(checks.cycle_breaches([cycle | {"ottla.log.c"}], [cycle], (), "modules"))


class TestImportCheck:
    def test_an_import_that_leads_nowhere_is_found(self) -> None:
        modules = {"ottla.log.a": module("ottla.log.a", "class Known: ...\nVALUE = 1\n")}
        source = "from ottla.log.a import VALUE, Known, Unknown\nfrom ottla.log.b import x\nimport json\n"
        assert list(checks.dead_imports("t.py", source, modules)) == [
            "t.py:1: ottla.log.a does not define Unknown",
            "t.py:2: there is no module ottla.log.b",
        ]


class TestNameCheck:
    def test_a_public_class_that_two_modules_define_is_found(self) -> None:
        modules = [
            module("ottla.log.a", "class Entry: ...\nclass _Own: ...\nclass Other: ..."),
            module("ottla.raft.b", "class Entry: ...\nclass _Own: ..."),
        ]
        assert checks.duplicated_names(modules) == {"Entry": ["ottla/log/a.py", "ottla/raft/b.py"]}

    def test_messages_and_the_blocking_clients_repeat_names(self) -> None:
        modules = [
            module("ottla.client.producer.producer", "class Producer: ...\nclass Topic: ..."),
            module("ottla.client.blocking.clients", "class Producer: ..."),
            module("ottla.protocol.messages.metadata", "class Topic: ..."),
        ]
        assert checks.duplicated_names(modules) == {}


class TestTextChecks:
    @pytest.mark.parametrize("text", ["a ``word``", "see :meth:`start`", "a :class:`~ottla.node.Node`"])
    def test_markup_other_than_single_backticks_is_found(self, text: str) -> None:
        assert list(checks.markup_breaches("a.py", f"fine\n{text}")) == [
            f"a.py:2: use single backticks: {text}"
        ]

    @pytest.mark.parametrize("text", ["a `word`", "```\nfenced\n```", "key: `value`"])
    def test_single_backticks_and_fences_are_fine(self, text: str) -> None:
        assert list(checks.markup_breaches("a.md", text)) == []

    @pytest.mark.parametrize(
        "text", ["Nobody reads it", "whoever asks", "it begins anew", "the node is told", "waits for ever"]
    )
    def test_a_banned_word_is_found(self, text: str) -> None:
        (breach,) = checks.word_breaches("a.py", text)
        assert breach.startswith("a.py:1: ")

    @pytest.mark.parametrize("text", ["no caller waits", "the history", "a new log", "it told", "for every"])
    def test_plain_words_are_fine(self, text: str) -> None:
        assert list(checks.word_breaches("a.py", text)) == []


class TestDoorCheck:
    @for_each(
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
