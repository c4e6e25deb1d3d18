"""Who uses what, read from the sources without running them: `Graph.touched_by` finds the tests of a change.

A node is a module, by its dotted name, or another file, by its path. Modules of the tests that hold no
tests, as each `conftest.py`, are taken apart: what uses one fixture of them (`tests.cli.conftest:topic`)
does not use the others. An import counts wherever it stands. What is loaded by name is found by the name: a
text that names a module (`"ottla.tables.worker"`) uses it, the beginning of a name (`f"ottla.cli.{name}"`)
the whole package, a program in a text what it imports, a command what comes after `-m`, and a text that
names a file (`"guide.md"`) that file. There may be edges too many, and none too few:
`tests/house/test_affected.py` lists the code that loads by name.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tests.house import checks
from tests.house.checks import Module

FACE: Final = "ottla"  # its names are imported when they are first asked for
PLUGIN: Final = "ottla.testing.plugin"
KERNEL: Final = "ottla.records._kernel"
KERNEL_SOURCES: Final = ("src/ottla/records/_kernel.", "src/ottla/records/kernel/")
_ROOTS: Final = ("src/ottla", "src/pyspark_ottla", "tests", "bench", "examples")
_PACKAGES: Final = "ottla|pyspark_ottla|tests|bench|examples"
_DOTTED: Final = re.compile(rf"\b(?:{_PACKAGES})(?:\.\w+)*\.?")
_IMPORT: Final = re.compile(rf"\bfrom\s+((?:{_PACKAGES})[\w.]*)\s+import\s+\(?([\w ,]+)")
_FILE: Final = re.compile(r"(?:[\w.-]*/)*([\w-][\w.-]*\.[a-z]\w*)")


@dataclass
class Facts:
    """What one file uses, as `kind:name` (the kinds are those of `Graph._targets`), by the symbol that does.

    The symbol "" is what runs when the module is imported, and everything where it is not taken apart.
    """

    uses: dict[str, list[str]] = field(default_factory=dict)
    fixtures: list[str] = field(default_factory=list)


def load_graph(
    root: Path, others: Iterable[str] = (), gone: Iterable[str] = (), cache: Path | None = None
) -> Graph:
    """Read the sources below `root`. `others` are files that are not Python, `gone` are modules that were
    deleted; `cache` keeps what files use until they change.
    """
    makers = [Path(__file__), Path(checks.__file__)]
    version = [path.stat().st_mtime_ns for path in makers]
    known: dict[str, Any] = {}
    if cache is not None and cache.exists():
        with contextlib.suppress(ValueError):
            known = json.loads(cache.read_text())
    if known.get("") != version:
        known = {}
    kept: dict[str, Any] = {"": version}
    facts: dict[str, Facts] = {}
    paths: dict[str, str] = {}
    for path in [path for each in _ROOTS for path in sorted((root / each).rglob("*.py"))]:
        relative = path.relative_to(root).as_posix()
        name, status = name_of(relative), path.stat()
        stamp = [status.st_mtime_ns, status.st_size]
        if relative in known and known[relative][0] == stamp:
            facts[name] = Facts(**known[relative][1])
        else:
            with checks.uncollected():
                facts[name] = facts_of(Module(name, relative, path.read_text()))
        paths[relative] = name
        kept[relative] = [stamp, asdict(facts[name])]
    if cache is not None and kept != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(kept))
    for relative in gone:
        paths[relative] = name_of(relative)
        facts.setdefault(paths[relative], Facts({"": []}))
    for relative in others:
        file = root / relative
        if relative.startswith(KERNEL_SOURCES):
            paths[relative] = KERNEL
            imported = checks.compiled_imports(file.read_text()) if file.exists() else ()
            facts.setdefault(KERNEL, Facts({"": []})).uses[""] += [f"module:{name}" for name in imported]
        else:
            paths[relative] = relative
            sample = file.read_text() if file.exists() and file.suffix == ".md" else ""
            facts[relative] = Facts({"": sorted(_imports_in(sample))})
    return Graph(facts, paths)


def name_of(relative: str) -> str:
    """Return the dotted name of the module in a file."""
    return relative.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def is_test_module(name: str) -> bool:
    return name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")


def is_taken_apart(name: str) -> bool:
    return name == PLUGIN or (name.startswith("tests.") and not is_test_module(name))


# What one file uses.


def facts_of(module: Module) -> Facts:
    tree = checks.parse(module.source)
    bound = _bound(tree, module)
    if not is_taken_apart(module.name):
        imported = {each.target for each in checks.imports_of(tree, module)}
        if module.name.startswith("examples."):  # a program imports its neighbours by their short names
            imported |= {f"{module.package}.{target}" for target in imported}
        uses = {*(f"module:{target}" for target in imported), *_uses_in(tree, bound)}
        return Facts({"": sorted(uses)})
    symbols = {name for statement in tree.body for name in _symbols(statement)}
    found: dict[str, set[str]] = {"": set()}
    fixtures = []
    for statement in tree.body:
        uses = _uses_in(statement, bound, symbols)
        # An import of the module itself is a use where the code names what it binds.
        imported = {each.target for each in checks.imports_of(statement, module)} - {*bound.values()}
        uses |= {f"module:{target}" for target in imported}
        names = _symbols(statement)
        decorators = [ast.unparse(each) for each in getattr(statement, "decorator_list", ())]
        if any("fixture" in each for each in decorators):
            fixtures += names
        if any("autouse" in each for each in decorators) or any(name.startswith("pytest_") for name in names):
            found[""] |= uses
        for name in names or [""]:
            found.setdefault(name, set()).update(uses)
    for name, target in bound.items():
        found.setdefault(name, set()).add(f"module:{target}")
    return Facts({symbol: sorted(uses) for symbol, uses in found.items()}, fixtures)


def _bound(tree: ast.Module, module: Module) -> dict[str, str]:
    """The names that imports of the module bind, in an `if` or `try` too, and what they stand for."""
    found: dict[str, str] = {}
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            targets = [each.target for each in checks.imports_of(node, module)]
            for alias, target in zip(node.names, targets, strict=True):
                if isinstance(node, ast.Import) and alias.asname is None:
                    found[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
                else:
                    found[alias.asname or alias.name] = target
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += ast.iter_child_nodes(node)
    return found


def _symbols(statement: ast.stmt) -> list[str]:
    """The names by which other code uses a statement; none if it runs for all."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    if any(not isinstance(target, ast.Name | ast.Tuple) for target in targets):
        return []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _uses_in(tree: ast.AST, bound: dict[str, str], symbols: set[str] | None = None) -> set[str]:
    """What code uses beside its imports. With `symbols`, those of a module taken apart, names count too."""
    found: set[str] = set()
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if node.body and isinstance(node.body[0], ast.Expr) else None
            if docstring is not None and isinstance(docstring.value, ast.Constant):
                seen.add(docstring.value)
                if ">>>" in str(docstring.value.value):
                    found |= _imports_in(str(docstring.value.value))
        if isinstance(node, ast.arg):
            found.add(f"fixture:{node.arg}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in seen:
            found |= _uses_in_text(node.value)
        elif isinstance(node, ast.Call | ast.List | ast.Tuple):
            words = [
                str(each.value) if isinstance(each, ast.Constant) else None
                for each in (node.args if isinstance(node, ast.Call) else node.elts)
            ]
            found |= {f"module:{name}.__main__" for flag, name in itertools.pairwise(words) if flag == "-m"}
        elif isinstance(node, ast.Attribute | ast.Name) and node not in seen:
            attributes: list[str] = []
            owner: ast.AST = node
            while isinstance(owner, ast.Attribute):
                attributes.insert(0, owner.attr)
                owner = owner.value
                seen.add(owner)
            if not isinstance(owner, ast.Name):
                continue
            if owner.id not in bound:
                found |= {f"symbol:{owner.id}"} if owner.id in (symbols or ()) else set()
                continue
            target = ".".join([bound[owner.id], *attributes])
            if "__path__" in attributes:
                found.add(f"package:{target.partition('.__path__')[0]}")
            elif target == FACE:
                found.add(f"package:{FACE}")
            elif symbols is not None or target.startswith(f"{FACE}."):
                found.add(f"module:{target}")
    return found


def _uses_in_text(text: str) -> set[str]:
    if text.isidentifier():
        return {f"asked:{text}"}
    found = _imports_in(text)
    for match in _DOTTED.finditer(text):
        name = match.group()
        if name == text or (name.endswith(".") and name.count(".") > 1 and match.end() == len(text)):
            found.add(f"{'package' if name.endswith('.') else 'module'}:{name.rstrip('.')}")
        elif "." in name.rstrip("."):
            found.add(f"module:{name.rstrip('.')}")
    if text.endswith("*.py"):
        found.add("package:ottla")
    elif match_file := _FILE.fullmatch(text):
        found.add(f"file:{match_file.group(1)}")
    return found


def _imports_in(program: str) -> set[str]:
    """The imports of a program that is a text."""
    found = set()
    for match in _IMPORT.finditer(program):
        names = [words[0] for each in match.group(2).split(",") if (words := each.split())]
        found |= {f"module:{match.group(1)}.{name}" for name in names}
    return found


# How files hang together.

# Spark imports it, as every module that begins with `pyspark_`.
_FOUND_BY_SPARK: Final = ("pyspark_ottla", ("ottla.spark.session", "tests.spark.conftest"))
# What they name has no part in a result: loggers have the names of modules, and what counts or chooses tests.
_NAMES_ONLY: Final = frozenset(
    (
        "ottla.node.config.loggers",
        *(f"tests.support.{name}" for name in ("affected", "costs", "import_graph", "scheduling")),
    )
)


class Graph:
    """`users[node]` are the nodes that use it."""

    def __init__(self, facts: dict[str, Facts], paths: dict[str, str]) -> None:
        self._facts: Final = facts
        # The node of each file.
        self.paths: Final = paths
        self.test_modules: Final = {
            path: name for path, name in paths.items() if is_test_module(name) and path.endswith(".py")
        }
        self._faces: Final = (
            {each.rpartition(".")[2]: each.partition(":")[2] for each in facts[FACE].uses[""]}
            if FACE in facts
            else {}
        )
        self._by_file: Final[dict[str, list[str]]] = defaultdict(list)
        for path, name in paths.items():
            self._by_file[PurePosixPath(path).name].append(name)
        self.users: Final[dict[str, set[str]]] = defaultdict(set)
        for name in facts:
            self._add(name)
        self.users[_FOUND_BY_SPARK[0]].update(_FOUND_BY_SPARK[1])

    def touched_by(self, nodes: Iterable[str]) -> set[str]:
        """All that uses these nodes, directly or not, and they themselves."""
        found = set(nodes)
        waiting = list(found)
        while waiting:
            new = self.users.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    def test_modules_touched_by(self, nodes: Iterable[str]) -> set[str]:
        """The paths of these modules."""
        touched = self.touched_by(nodes)
        return {path for path, name in self.test_modules.items() if name in touched}

    def _add(self, name: str) -> None:
        self.users[name.rpartition(".")[0]].add(name)
        for symbol, uses in self._facts[name].uses.items():
            user = f"{name}:{symbol}" if symbol else name
            if symbol:
                self.users[name].add(user)
                self.users[user].add(f"{name}:*")
            if name != FACE:
                for use in uses:
                    if name in _NAMES_ONLY and not use.startswith(("symbol", "module:ottla.runtime")):
                        continue
                    for target in self._targets(use, name):
                        self.users[target].add(user)
        self.users[name].add(f"{name}:*")
        if is_test_module(name):
            for conftest in self._conftests(name):
                self.users[conftest].add(name)

    def _targets(self, use: str, user: str) -> Iterator[str]:
        kind, _, name = use.partition(":")
        if kind == "module":
            yield from self._module(name)
        elif kind == "package":
            for each in self._facts:
                if each == name or each.startswith(f"{name}."):
                    yield f"{each}:*"
        elif kind == "symbol":
            yield f"{user}:{name}"
        elif kind == "fixture" or (kind == "asked" and (is_test_module(user) or user.endswith(".conftest"))):
            yield from self._fixtures(name, user)
        elif kind == "file":
            yield from self._by_file.get(name, ())

    def _module(self, target: str) -> Iterator[str]:
        name, rest = target, ""
        while name not in self._facts:
            name, dot, attribute = name.rpartition(".")
            if not dot:
                return
            rest = attribute
        if name == FACE and rest in self._faces:
            yield from self._module(self._faces[rest])
        elif not is_taken_apart(name):
            yield name
        elif rest in self._facts[name].uses and rest:
            yield f"{name}:{rest}"
        else:
            yield f"{name}:*"

    def _conftests(self, name: str) -> Iterator[str]:
        """What pytest loads beside a test module: the plugin, and each `conftest.py` up the tree."""
        candidates = [PLUGIN]
        while name := name.rpartition(".")[0]:
            candidates.append(f"{name}.conftest")
        yield from (each for each in candidates if each in self._facts)

    def _fixtures(self, fixture: str, user: str) -> Iterator[str]:
        if not user.startswith("tests.") and user != PLUGIN:
            return
        near = list(self._conftests(user))
        if user.rpartition(".")[2] != "conftest" and is_taken_apart(user) and self._facts[user].fixtures:
            # Its fixtures are imported by modules of any directory.
            near = [each for each in self._facts if each == PLUGIN or each.endswith(".conftest")]
        for each in near:
            if fixture in self._facts[each].fixtures:
                yield f"{each}:{fixture}"
