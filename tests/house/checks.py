"""The rules of the house as functions over source text, so that each can be shown to fail.

A checker takes modules by name and returns one line for each breach, with file and line where there is one.
`python -m tests.house.checks [directory]` prints the numbers of a package: modules, cycles, duplicated names.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# From the ground up. A room may import its own floor and those before it.
FLOORS = (
    "runtime",
    "protocol",
    "records",
    "schemas",
    "registry",
    "tables",
    "rpc",
    "log",
    "remote",
    "raft",
    "metadata",
    "zookeeper",
    "replication",
    "coordinator",
    "security",
    "node",
    "client",
    "spark",
    "console",
    "testing",
    "sim",
    "cli",
)
# Downwards, and still not allowed: a client speaks to any broker, so it knows none from the inside. Spark
# reads the objects that brokers put into a store, whose layout is public.
FORBIDDEN_PAIRS = frozenset(
    (upper, lower)
    for upper in ("client", "spark")
    for lower in ("node", "coordinator", "replication", "metadata", "raft", "remote", "log")
) - {("spark", "remote")}

# What attaches to a broker by a `BrokerExtension`, and the rooms that must not know of it.
OPTIONAL_ROOMS = (
    *("ottla.node.remote", "ottla.node.tables", "ottla.node.telemetry", "ottla.node.registry"),
    *("ottla.tables", "ottla.registry", "ottla.console"),
)
CORE_ROOMS = frozenset(("log", "raft", "metadata", "replication", "coordinator", "node"))
# The list of extensions; the handlers of an API that an extension has; the settings, which are parsed as one.
NAME_OPTIONAL_ROOMS = ("ottla.node.standard_extensions", "ottla.node.api.handlers", "ottla.node.config")

# Rooms that may touch the world without asking `runtime`: it itself, and those that no broker needs.
OPEN_ROOMS = frozenset(("runtime", "cli", "testing", "sim", "spark", "console"))
DOORS = frozenset(
    (
        *("_thread", "concurrent", "multiprocessing", "queue", "threading"),
        *("random", "secrets", "time", "uuid"),
        *("fcntl", "fileinput", "glob", "mmap", "os", "pathlib", "posix", "shutil", "tempfile"),
        *("http", "select", "selectors", "socket", "socketserver", "ssl", "urllib.request"),
        *("atexit", "platform", "pwd", "resource", "signal", "subprocess", "uvloop"),
    )
)
# Rooms whose patterns are those of the user who started them.
ROOMS_OF_THEIR_USER = frozenset(("client", "spark", "testing", "sim", "cli"))
# TLS contexts are the business of one room above the ground floor.
ROOM_DOORS = {"security": frozenset(("ssl",))}
# Names from those modules that touch nothing.
PURE_NAMES = frozenset(("pathlib.PurePath", "pathlib.PurePosixPath", "uuid.UUID"))
# Calls that open a door of something that is otherwise allowed: builtins, asyncio, its loops, datetime.
DOOR_BUILTINS = frozenset(("open", "input", "breakpoint"))
ASYNCIO_DOORS = frozenset(
    (
        *("open_connection", "open_unix_connection", "start_server", "start_unix_server", "to_thread"),
        *("create_subprocess_exec", "create_subprocess_shell"),
    )
)
LOOP_DOORS = frozenset(
    (
        *("create_connection", "create_datagram_endpoint", "create_server", "connect_accepted_socket"),
        *("create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo", "run_in_executor"),
        *("sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_sendall", "sock_sendfile"),
        *("add_reader", "add_signal_handler", "add_writer", "subprocess_exec", "subprocess_shell"),
    )
)
CLOCK_METHODS = frozenset(("now", "today", "utcnow"))

# Modules that define public class names of other modules, and why.
MESSAGES = "ottla.protocol.messages."
REPEATED_ON_PURPOSE = {
    "ottla.client.blocking.clients": "offers every client class under its own name to callers without a loop",
}

COMPILED = "ottla.records._kernel"

BANNED_WORDS = re.compile(
    r"\b(nobody|whoever|anew|somebody|anybody|everybody|for ever|(?:is|are|was|be) told|told of"
    r"|he|his|him|himself)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"(?<!`)`{2}(?!`)|:(?:class|func|meth|mod|attr|data|exc|obj|ref|py:\w+):`")


class Module(NamedTuple):
    """A module's source; `name` is dotted, `path` is what a breach is reported under."""

    name: str
    path: str
    source: str

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def package(self) -> str:
        """The dotted name of its directory; `__main__`, a program that no module imports, is its own."""
        package, _, name = self.name.rpartition(".")
        return self.name if self.is_package or name == "__main__" else package

    @property
    def room(self) -> str | None:
        """None for the package itself; `python -m ottla` is the command line, `ottla.blocking` is clients."""
        parts = self.name.split(".")
        if parts[1:] == ["__main__"]:
            return "cli"
        if parts[1:] in (["blocking"], ["serdes"]):
            return "client"
        return parts[1] if len(parts) > 1 else None


class Import(NamedTuple):
    """`target` is the most that is known: `from a.b import c` is `a.b.c`, whether `c` is a module or not."""

    target: str
    line: int
    # Runs when the module is imported, not inside a function or for type checkers only.
    eager: bool


def load(root: Path) -> list[Module]:
    """All modules of the package whose directory is `root`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root.parent)
        parts = relative.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, relative.as_posix(), path.read_text()))
    with uncollected():
        for module in found:
            parse(module.source)
        gc.freeze()  # later collections, of other tests too, pass over the trees
    return found


@lru_cache(maxsize=4096)
def imports(module: Module) -> tuple[Import, ...]:
    """Every import, wherever it stands: at the top, in a function, under TYPE_CHECKING, or by name."""
    return tuple(imports_of(parse(module.source), module))


def imports_of(part: ast.AST, module: Module) -> list[Import]:
    """The imports in a part of the module's tree."""
    found: list[Import] = []
    _collect(part, module, True, found)
    return found


def compiled_imports(source: str) -> Iterator[str]:
    """What Cython code imports, by its import lines: there is no parser here."""
    yield from (match.group(1) for match in _COMPILED_IMPORT.finditer(source))


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: syntax trees are many objects, and all of them stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@lru_cache(maxsize=4096)
def parse(source: str) -> ast.Module:
    with uncollected():
        return ast.parse(source)


def _collect(node: ast.AST, module: Module, eager: bool, found: list[Import]) -> None:
    if isinstance(node, ast.Import):
        found += [Import(alias.name, node.lineno, eager) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(module, node)
        found += [Import(f"{base}.{alias.name}", node.lineno, eager) for alias in node.names]
    elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            found.append(Import(name.value, node.lineno, eager))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        eager = False
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for branch, runs in ((node.body, False), (node.orelse, eager)):
            for statement in branch:
                _collect(statement, module, runs, found)
        return
    for child in ast.iter_child_nodes(node):
        _collect(child, module, eager, found)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*package, *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def floor_breaches(modules: Iterable[Module]) -> Iterator[str]:
    """Imports of a higher floor, of a forbidden pair, and rooms that have no floor.

    What `ottla/__init__.py` imports when a name is first asked for is the public face of the package and may
    come from any floor; what it imports at once would be imported by all.
    """
    for module in modules:
        if module.room is not None and module.room not in FLOORS:
            yield f"{module.path}: the room {module.room!r} has no floor: add it to FLOORS or move the module"
            continue
        for imported in imports(module):
            parts = imported.target.split(".")
            room = parts[1] if len(parts) > 1 and parts[0] == "ottla" else None
            if room not in FLOORS:
                continue
            where = f"{module.path}:{imported.line}"
            if module.room is None:
                if imported.eager:
                    yield f"{where}: the package itself imports {imported.target} at once: make it lazy"
            elif FLOORS.index(room) > FLOORS.index(module.room):
                yield f"{where}: {module.room} imports {imported.target}, which is on a higher floor"
            elif (module.room, room) in FORBIDDEN_PAIRS:
                yield f"{where}: {module.room} must not know {room}, and imports {imported.target}"


def extension_breaches(modules: Iterable[Module]) -> Iterator[str]:
    """Imports of an optional room by what a broker cannot do without: a broker calls its extensions by
    `BrokerExtension`.
    """
    for module in modules:
        if module.room not in CORE_ROOMS or _is_within(module.name, (*OPTIONAL_ROOMS, *NAME_OPTIONAL_ROOMS)):
            continue
        for imported in imports(module):
            if _is_within(imported.target, OPTIONAL_ROOMS):
                yield f"{module.path}:{imported.line}: a broker has to serve without {imported.target}"


def module_cycles(modules: Iterable[Module], *, eager_only: bool = False) -> list[frozenset[str]]:
    """Groups of modules that import each other, counting every import.

    With `eager_only` only imports that run when a module is imported count: such a cycle depends on which
    module of it is imported first.
    """
    by_name = {module.name: module for module in modules}
    graph = {
        module.name: {target for target, eager in _edges(module, by_name) if eager or not eager_only}
        for module in by_name.values()
    }
    return _cycles(graph)


def package_cycles(modules: Iterable[Module]) -> list[frozenset[str]]:
    """Groups of packages that import each other, counting every import.

    A package is a directory: `ottla.log.segment.offset_index` belongs to `ottla.log.segment`, and
    `ottla.log.unified_log` to `ottla.log`. A package and its sub-packages are different packages, so a
    sub-package that needs a module beside it and a module beside it that needs the sub-package are a cycle:
    move what both need into a package of its own. That importing `ottla.log.segment` also runs
    `ottla/log/__init__.py` does not count, because those files import nothing.
    """
    by_name = {module.name: module for module in modules}
    graph: dict[str, set[str]] = {module.package: set() for module in by_name.values()}
    for module in by_name.values():
        graph[module.package] |= {by_name[target].package for target, _ in _edges(module, by_name)}
    for package, targets in graph.items():
        targets.discard(package)
    return _cycles(graph)


def cycle_breaches(
    cycles: Iterable[frozenset[str]], allowed: Container[frozenset[str]], rooms: Iterable[str], kind: str
) -> Iterator[str]:
    """Cycles that are neither allowed themselves nor inside of a room that still has some."""
    for cycle in cycles:
        if cycle not in allowed and not any(is_inside(cycle, room) for room in rooms):
            yield f"import cycle of {len(cycle)} {kind}: {', '.join(sorted(cycle))}"


def is_inside(cycle: frozenset[str], room: str) -> bool:
    return all(name == room or name.startswith(room + ".") for name in cycle)


def _edges(module: Module, by_name: Mapping[str, Module]) -> Iterator[tuple[str, bool]]:
    """The modules that `module` imports, and whether it does so eagerly.

    `ottla/__init__.py` has no edges: it is the public face of the package, imports its names when they are
    first used, and is imported by modules that need the version.
    """
    if module.room is None:
        return
    for imported in imports(module):
        target = _module_of(imported.target, by_name)
        if target is not None and target != module.name and by_name[target].room is not None:
            yield target, imported.eager


def _cycles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    return [frozenset(component) for component in _components(graph) if len(component) > 1]


def dead_imports(path: str, source: str, modules: Mapping[str, Module]) -> Iterator[str]:
    """Imports from `ottla` of modules that do not exist, or of names that their module does not define.

    For code that no type checker reads: tests, measurements, examples.
    """
    for node in ast.walk(parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("ottla."):
            continue
        if node.module == COMPILED:
            continue
        module = modules.get(node.module or "")
        if module is None:
            yield f"{path}:{node.lineno}: there is no module {node.module}"
            continue
        for alias in node.names:
            if f"{module.name}.{alias.name}" not in modules and alias.name not in _bound(module.source):
                yield f"{path}:{node.lineno}: {module.name} does not define {alias.name}"


@lru_cache(maxsize=4096)
def _bound(source: str) -> frozenset[str]:
    """The names that a module binds, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return frozenset(names)


def _module_of(target: str, by_name: Mapping[str, Module]) -> str | None:
    if target in by_name:
        return target
    parent = target.rpartition(".")[0]
    return parent if parent in by_name else None


def _components(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Strongly connected components, by Tarjan, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in sorted(graph):
        work = [(root, iter(sorted(graph[root])))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    cut = stack.index(name)
                    yield set(stack[cut:])
                    del stack[cut:]


def door_breaches(modules: Iterable[Module]) -> Iterator[str]:
    """Ways around `runtime` to time, chance, files, threads, other processes and the network."""
    for module in modules:
        if module.room in OPEN_ROOMS:
            continue
        allowed = ROOM_DOORS.get(module.room or "", frozenset())
        for imported in imports(module):
            door = _door(imported.target)
            if door is not None and door not in allowed:
                yield f"{module.path}:{imported.line}: imports {imported.target}: take it from ottla.runtime"
        for node in ast.walk(parse(module.source)):
            if isinstance(node, ast.Call) and (call := _door_call(node)) is not None:
                yield f"{module.path}:{node.lineno}: calls {call}: take it from ottla.runtime"


def pattern_breaches(modules: Iterable[Module]) -> Iterator[tuple[str, int]]:
    """Calls of `re` in functions, with a pattern that is not written there, in rooms that see patterns of
    others; and their lines. Such a pattern can take exponential time, and `re` holds the interpreter.
    """
    for module in modules:
        if module.room in ROOMS_OF_THEIR_USER:
            continue
        functions = [
            each
            for each in ast.walk(parse(module.source))
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        ]
        for node in {node: None for each in functions for node in ast.walk(each)}:
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute)):
                continue
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if is_re and node.func.attr != "escape" and not isinstance(node.args[0], ast.Constant):
                yield f"{module.name}.{node.func.attr}", node.lineno


def _door(target: str) -> str | None:
    if target in PURE_NAMES:
        return None
    module, _, name = target.rpartition(".")
    if module == "asyncio" and name in ASYNCIO_DOORS:
        return target
    parts = target.split(".")
    prefixes = (".".join(parts[: length + 1]) for length in range(len(parts)))
    return next((prefix for prefix in prefixes if prefix in DOORS), None)


def _door_call(node: ast.Call) -> str | None:
    if isinstance(node.func, ast.Name):
        return f"{node.func.id}()" if node.func.id in DOOR_BUILTINS else None
    if not isinstance(node.func, ast.Attribute):
        return None
    owner, name = ast.unparse(node.func.value), node.func.attr
    if (owner == "asyncio" and name in ASYNCIO_DOORS) or (_is_loop(owner) and name in LOOP_DOORS):
        return f"{owner}.{name}()"
    if name in CLOCK_METHODS and owner.split(".")[-1] in ("datetime", "date"):
        return f"{owner}.{name}()"
    if name == "open" and owner in ("io", "gzip", "codecs", "builtins"):
        return f"{owner}.{name}()"
    return None


def _is_loop(owner: str) -> bool:
    return owner.removesuffix("()").endswith("loop")


# Rooms of a running node, in which each long-lived task has a supervisor.
SUPERVISED_ROOMS = frozenset(
    ("rpc", "log", "raft", "metadata", "zookeeper", "replication", "coordinator", "security", "node")
)
TASK_STARTS = frozenset(
    ("create_task", "ensure_future", "call_later", "call_at", "call_soon", "call_soon_threadsafe", "Thread")
)


def unsupervised_tasks(modules: Iterable[Module]) -> dict[str, int]:
    """The functions that start tasks or timers without `ottla.runtime.tasks`, and the line of the first."""
    found: dict[str, int] = {}
    for module in modules:
        if module.room in SUPERVISED_ROOMS:
            _find_task_starts(parse(module.source), module.name, found)
    return found


def _find_task_starts(node: ast.AST, where: str, found: dict[str, int]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{where}.{child.name}"
        elif isinstance(child, ast.Call) and _called(child).rpartition(".")[2] in TASK_STARTS:
            found.setdefault(where, child.lineno)
        _find_task_starts(child, inner, found)


def version_breaches(modules: Iterable[Module]) -> Iterator[str]:
    """In the docstring of a handler, what each version added stands in a line that begins with its number."""
    for module in modules:
        if not module.name.startswith("ottla.node.api.handlers."):
            continue
        last = -1
        for line in (ast.get_docstring(parse(module.source)) or "").splitlines():
            if (begins := re.match(r"Versions? (\d+)", line)) is None:
                if re.search(r"[.;] (Version )?\d+ (is|has|names|can|may|takes|returns|added)\b", line):
                    yield f"{module.name}: {line!r} has a version within"
            elif int(begins[1]) <= last:
                yield f"{module.name}: version {begins[1]} stands below version {last}"
            else:
                last = int(begins[1])
                if re.search(r"; \d+ ", line):
                    yield f"{module.name}: {line!r} has two versions"


# Functions whose cost grows with what clients have sent, stored or named: codecs, walks over records,
# assignments, and encodings of lists without an end.
COSTLY_CALLS = frozenset(
    (
        "build_target_assignment",
        "compress",
        "decode_records",
        "decode_snapshot",
        "decompress",
        "encode_snapshot",
        "filter_batch",
        "find_greatest_timestamp",
        "find_timestamp",
        "map_batch",
        "open_reader",
        "payload_of",
        "read_records",
        "validate_and_assign_offsets",
    )
)


def costly_calls(modules: Iterable[Module]) -> dict[str, int]:
    """The functions of a node that call one of these, and the line of the first call."""
    found: dict[str, int] = {}
    for module in modules:
        if module.room in SUPERVISED_ROOMS | {"remote"}:
            _find_calls(parse(module.source), module.name, COSTLY_CALLS, found)
    return found


def _find_calls(node: ast.AST, where: str, names: frozenset[str], found: dict[str, int]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{where}.{child.name}"
        elif isinstance(child, ast.Call):
            # A function that is given away is called as well: `pool.run(read_records, data)`.
            called = (child.func, *child.args, *(each.value for each in child.keywords))
            if any(_name_of(each) in names for each in called):
                found.setdefault(where, child.lineno)
        _find_calls(child, inner, names, found)


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


_COMPILED_IMPORT = re.compile(r"^\s*(?:from|import|cimport)\s+([\w.]+)", re.MULTILINE)


# Rooms of pure state machines -> the modules in them that drive them. Time is passed to a pure module as
# `now_ms`; it awaits nothing and holds no clock.
PURE_ROOMS: Mapping[str, tuple[str, ...]] = {
    "ottla.raft": ("ottla.raft.driver",),
    "ottla.metadata.image": (),
    "ottla.metadata.controller": ("ottla.metadata.controller.quorum_controller",),
    "ottla.coordinator": (
        "ottla.coordinator.group.service",
        "ottla.coordinator.runtime.coordinator_runtime",
        "ottla.coordinator.runtime.loader",
        "ottla.coordinator.share.persister",
        "ottla.coordinator.share.service",
        "ottla.coordinator.transaction.pending_markers",
        "ottla.coordinator.transaction.service",
    ),
    "ottla.replication": (
        "ottla.replication.alter_partition_manager",
        "ottla.replication.log_flush_scheduler",
        "ottla.replication.purgatory",
        "ottla.replication.replica_fetcher",
        "ottla.replication.replica_fetcher_manager",
        "ottla.replication.replica_manager",
        "ottla.replication.replication_quota_manager",
        "ottla.replication.tier_state_machine",
    ),
}
IMPURE_IMPORTS = ("asyncio", "ottla.runtime.clock", "ottla.runtime.runtime", "ottla.runtime.network")


def purity_breaches(modules: Iterable[Module]) -> Iterator[str]:
    """Clocks, event loops and awaits in a room of pure state machines."""
    for module in modules:
        if not _is_pure(module.name):
            continue
        for imported in imports(module):
            if _is_within(imported.target, IMPURE_IMPORTS):
                yield f"{module.path}:{imported.line}: imports {imported.target}: pass `now_ms` in instead"
        for node in ast.walk(parse(module.source)):
            if isinstance(node, ast.AsyncFunctionDef):
                yield f"{module.path}:{node.lineno}: {node.name} is async: await in the driver instead"


def _is_pure(name: str) -> bool:
    return any(
        _is_within(name, (room,)) and not _is_within(name, drivers) for room, drivers in PURE_ROOMS.items()
    )


def _is_within(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def compiled_door_breaches(path: str, source: str) -> Iterator[str]:
    """The same for Cython, which has no parser here: by its import lines."""
    for match in _COMPILED_IMPORT.finditer(source):
        name = match.group(1)
        if _door(name) is not None or name.startswith(("libc.stdio", "posix", "libc.time")):
            line = source.count("\n", 0, match.start(1)) + 1
            yield f"{path}:{line}: imports {name}: take it from ottla.runtime"


def duplicated_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Public class names that more than one module defines, with the paths.

    The messages of the protocol are not counted: every one is a module of its own with the names of Kafka's
    schema. Neither are the modules of `REPEATED_ON_PURPOSE`.
    """
    paths: dict[str, list[str]] = {}
    for module in modules:
        if module.name.startswith(MESSAGES) or module.name in REPEATED_ON_PURPOSE:
            continue
        for node in parse(module.source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths.setdefault(node.name, []).append(module.path)
    return {name: found for name, found in sorted(paths.items()) if len(found) > 1}


def markup_breaches(path: str, text: str) -> Iterator[str]:
    """Double backticks and roles in Python text, where single backticks are the one markup."""
    for number, line in enumerate(text.splitlines(), 1):
        if _MARKUP.search(line):
            yield f"{path}:{number}: use single backticks: {line.strip()}"


def word_breaches(path: str, text: str) -> Iterator[str]:
    """Words that leave the actor out or that are not plain engineering English."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := BANNED_WORDS.search(line):
            yield f"{path}:{number}: {match.group(0)!r}: name the actor and use plain words: {line.strip()}"


def report(root: Path) -> str:
    """The numbers that describe the package below `root`, one in each line."""
    modules = load(root)
    return "\n".join(
        (
            f"modules: {len(modules)}",
            _counted("module cycles, counting every import", module_cycles(modules)),
            _counted("package cycles, counting every import", package_cycles(modules)),
            f"duplicated public class names: {len(duplicated_names(modules))}",
        )
    )


def _counted(title: str, cycles: list[frozenset[str]]) -> str:
    sizes = ", ".join(str(size) for size in sorted(map(len, cycles), reverse=True))
    return f"{title}: {len(cycles)}" + (f" (of {sizes})" if cycles else "")


if __name__ == "__main__":
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "src" / "ottla"
    print(report(package))
