"""The rule against walking sets: `set_walks` finds where code takes the members of a set one by one.

Members of a set come in the order of their hashes: of strings that is another one in each process, of objects
it depends on their addresses. A run of the simulator is the same run every time only if no code that it runs
takes such an order. Keep members in a dict (`dict[T, None]`) where they are walked, or sort them.

The types are read off annotations and assignments, over all modules: of parameters, locals, attributes,
fields, properties, and of what functions return. That is no type checker, but what it does not see is rare. A
use whose result does not depend on the order (`sorted`, `any`, `sum`, another set) is no walk.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from tests.house.checks import Module, load, parse

# Rooms of which the simulator runs code.
SIMULATED_ROOMS = frozenset(
    (
        *("runtime", "protocol", "records", "rpc", "log", "raft", "metadata", "replication"),
        *("coordinator", "security", "node", "client", "sim"),
    )
)

_SETS = frozenset(("set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet", "WeakSet"))
_MAPPINGS = frozenset(("dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict"))
_SET_METHODS = frozenset(("union", "intersection", "difference", "symmetric_difference", "copy"))
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
# What these make of their argument does not depend on its order; of those with a key, only without it.
_UNORDERED = frozenset(
    (
        *("set", "frozenset", "sorted", "sum", "any", "all", "len", "min", "max", "bool", "isinstance"),
        *("update", "difference_update", "intersection_update", "symmetric_difference_update"),
        *("issubset", "issuperset", "isdisjoint", *_SET_METHODS),
    )
)
_KEYED = frozenset(("sorted", "min", "max"))
_WALKING = frozenset(
    (
        *("list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "reversed", "deque", "chain"),
        *(
            "fromkeys",
            "join",
            "get_close_matches",
            "extend",
            "from_iterable",
            "gather",
            "wait",
            "islice",
            "dict",
        ),
    )
)
# Calls whose order, or whose value, is another one in each process.
_FORBIDDEN = {
    "TaskGroup": "it cancels its tasks in the order of a set",
    "as_completed": "it keeps its futures in a set",
    "all_tasks": "it returns a set",
    "hash": "a hash is another one in each process",
}

Type = ast.expr
_A_SET: Type = ast.Name("set")


class SetWalks:
    """All modules' declarations, and the walks in each."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self._modules = [(module, parse(module.source)) for module in modules]
        self._fields: dict[str, dict[str, Type]] = {}  # class -> attribute -> type
        self._methods: dict[str, dict[str, Type]] = {}  # class -> method -> what it returns
        self._functions: dict[str, list[Type | None]] = {}
        self._aliases: dict[str, Type] = {}
        self._bases: dict[str, list[str]] = {}
        for _, tree in self._modules:
            self._declare(tree)
        self._attributes = self._by_attribute(self._fields)
        self._returns = self._by_attribute(self._methods)

    # Declarations

    def _declare(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node.returns)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Subscript):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._aliases.update((each.id, node.value) for each in targets if isinstance(each, ast.Name))
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                self._declare_class(each)

    def _declare_class(self, node: ast.ClassDef) -> None:
        fields = self._fields.setdefault(node.name, {})
        methods = self._methods.setdefault(node.name, {})
        self._bases[node.name] = [name for base in node.bases if (name := _base_name(base))]
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                fields[part.target.id] = part.annotation
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                is_property = any(
                    _name(each) in ("property", "cached_property") for each in part.decorator_list
                )
                if part.returns is not None:
                    (fields if is_property else methods)[part.name] = part.returns
                self._declare_attributes(part, fields)

    def _declare_attributes(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, fields: dict[str, Type]
    ) -> None:
        parameters = {each.arg: each.annotation for each in _parameters(function)}
        target: ast.expr
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign):
                target, found = node.target, _unwrapped_final(node.annotation)
                found = _literal(node.value) if found is None else found
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, found = node.targets[0], _literal(node.value)
            else:
                continue
            if found is None and isinstance(node.value, ast.Name):
                found = parameters.get(node.value.id)
            if isinstance(target, ast.Attribute) and _name(target.value) == "self" and found is not None:
                fields.setdefault(target.attr, found)

    def _by_attribute(self, classes: dict[str, dict[str, Type]]) -> dict[str, Type]:
        """What an attribute is where the class is not known: a set if it is one in each class that has it."""
        found: dict[str, list[Type]] = {}
        for fields in classes.values():
            for name, type in fields.items():
                found.setdefault(name, []).append(type)
        return {name: _A_SET for name, types in found.items() if all(map(self.is_set, types))}

    # Types

    def is_set(self, type: Type | None) -> bool:
        if isinstance(type, ast.BinOp):
            return self.is_set(type.left) or self.is_set(type.right)
        name = _base_name(type)
        if name in self._aliases and name not in _SETS:
            return self.is_set(self._aliases[name])
        if name in ("Final", "ClassVar", "Awaitable") and isinstance(type, ast.Subscript):
            return self.is_set(type.slice)
        return name in _SETS

    def field(self, of: Type | None, name: str) -> Type | None:
        return self._member(self._fields, self._attributes, of, name)

    def returned(self, of: Type | None, name: str) -> Type | None:
        return self._member(self._methods, self._returns, of, name)

    def _member(
        self, classes: dict[str, dict[str, Type]], unknown: dict[str, Type], of: Type | None, name: str
    ) -> Type | None:
        if isinstance(of, ast.BinOp):  # of `X | None`
            return self._member(classes, unknown, of.left, name)
        known = _base_name(of)
        if known is None or known not in classes:
            return unknown.get(name)
        seen = [known]
        for each in seen:
            if name in classes.get(each, {}):
                return classes[each][name]
            seen += [base for base in self._bases.get(each, ()) if base not in seen]
        return None

    def value_of(self, mapping: Type | None) -> Type | None:
        """The type of a mapping's values."""
        if isinstance(mapping, ast.BinOp):
            return self.value_of(mapping.left)
        if isinstance(mapping, ast.Name) and mapping.id in self._aliases:
            return self.value_of(self._aliases[mapping.id])
        if isinstance(mapping, ast.Subscript) and _base_name(mapping) == "Final":
            return self.value_of(mapping.slice)
        match mapping:
            case ast.Subscript(slice=ast.Tuple(elts=[_, value])) if _base_name(mapping) in _MAPPINGS:
                return value
        return None

    def function(self, name: str) -> Type | None:
        if name in self._fields:
            return ast.Name(name)
        found = self._functions.get(name, [])
        return (
            found[0] if found and all(self.is_set(each) == self.is_set(found[0]) for each in found) else None
        )

    # Walks

    def walks(self) -> Iterator[tuple[str, int, str]]:
        for module, tree in self._modules:
            scope = _Scope(self, {}, None)
            scope.read(tree.body)
            for line, text in sorted(scope.found):
                yield module.name, line, text


class _Scope:
    """The names of one function, or of a module, with their types as far as they are known."""

    def __init__(self, walks: SetWalks, names: dict[str, Type], owner: str | None) -> None:
        self._walks = walks
        self._names = names
        self._owner = owner
        self.found: list[tuple[int, str]] = []
        self._harmless: set[ast.AST] = set()

    def read(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._read(statement)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef):
            inner = _Scope(self._walks, dict(self._names), node.name)
            inner.read(node.body)
            self.found += inner.found
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._read_function(node)
            return
        self._check(node)
        self._bind(node)
        for child in ast.iter_child_nodes(node):
            self._read(child)
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and child is node.iter:
                self._bind_loop(node.target, node.iter)

    def _read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        inner = _Scope(self._walks, dict(self._names), self._owner)
        if self._owner is not None:
            inner._names["self"] = ast.Name(self._owner)
        for each in _parameters(node):
            if each.annotation is not None:
                inner._names[each.arg] = each.annotation
            elif each.arg != "self":
                inner._names.pop(each.arg, None)
        inner.read(node.body)
        self.found += inner.found

    # What names are

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._names[node.target.id] = node.annotation
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            self._bind_name(node.targets[0].id, self._type(node.value))
        elif isinstance(node, ast.NamedExpr):
            self._bind_name(node.target.id, self._type(node.value))

    def _bind_name(self, name: str, type: Type | None) -> None:
        if type is None:
            self._names.pop(name, None)
        else:
            self._names[name] = type

    def _bind_loop(self, target: ast.expr, walked: ast.expr) -> None:
        """`for key, value in mapping.items()` and `for value in mapping.values()`."""
        method = (
            walked.func.attr
            if isinstance(walked, ast.Call) and isinstance(walked.func, ast.Attribute)
            else ""
        )
        value = None
        if isinstance(walked, ast.Call) and isinstance(walked.func, ast.Attribute):
            value = self._walks.value_of(self._type(walked.func.value))
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value if method == "values" else self._element(walked))
        elif isinstance(target, ast.Tuple):
            for each in target.elts:
                if isinstance(each, ast.Name):
                    self._names.pop(each.id, None)
            last = target.elts[-1]
            if method == "items" and isinstance(last, ast.Name) and value is not None:
                self._names[last.id] = value

    def _element(self, walked: ast.expr) -> Type | None:
        """The type of what a walk of a list or a tuple yields."""
        type = self._type(walked)
        if isinstance(type, ast.Subscript) and _base_name(type) in (
            "list",
            "Sequence",
            "Iterable",
            "Iterator",
        ):
            return type.slice
        return None

    def _type(self, node: ast.expr | None) -> Type | None:
        walks = self._walks
        match node:
            case ast.Set() | ast.SetComp():
                return _A_SET
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Attribute(value=value, attr=name):
                return walks.field(self._type(value), name)
            case ast.Subscript(value=value):
                return walks.value_of(self._type(value))
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                both = (self._type(left), self._type(right))
                is_set = any(walks.is_set(each) for each in both) or _is_keys(left) or _is_keys(right)
                return _A_SET if is_set else None
            case ast.IfExp(body=one, orelse=other):
                return self._first_set(one, other)
            case ast.BoolOp(values=values):
                return self._first_set(*values)
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self._type(value)
            case ast.Call(func=ast.Name(id=name)):
                return _A_SET if name in ("set", "frozenset") else walks.function(name)
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                of = self._type(value)
                if walks.is_set(of):
                    return _A_SET if name in _SET_METHODS else None
                if name in ("get", "pop", "setdefault"):
                    return walks.value_of(of)
                return walks.returned(of, name)
        return None

    def _first_set(self, *nodes: ast.expr) -> Type | None:
        types = [self._type(each) for each in nodes]
        return next((each for each in types if self._walks.is_set(each)), types[0])

    # Where sets are walked

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.For(iter=walked) | ast.AsyncFor(iter=walked):
                self._walk(walked, "a loop")
            case (
                ast.ListComp(generators=parts)
                | ast.GeneratorExp(generators=parts)
                | ast.DictComp(generators=parts)
            ):
                if node not in self._harmless:
                    self._read_comprehension(parts)
            case ast.Set(elts=elements):
                self._harmless.update(elements)
            case ast.Starred(value=walked) if node not in self._harmless:
                self._walk(walked, "unpacking")
            case ast.YieldFrom(value=walked):
                self._walk(walked, "yield from")
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=walked):
                self._walk(walked, "unpacking")
            case ast.Call():
                self._check_call(node)

    def _read_comprehension(self, parts: Sequence[ast.comprehension]) -> None:
        for part in parts:
            self._walk(part.iter, "a comprehension")
            self._bind_loop(part.target, part.iter)

    def _check_call(self, node: ast.Call) -> None:
        name = _name(node.func)
        keyed = name in _KEYED and any(each.arg == "key" for each in node.keywords)
        if name in _FORBIDDEN and (isinstance(node.func, ast.Name) or _name(node.func.value) == "asyncio"):  # type: ignore[attr-defined]
            self.found.append((node.lineno, f"`{name}`: {_FORBIDDEN[name]}"))
        if name in _UNORDERED and not keyed:
            self._harmless.update(node.args)
        elif name in _WALKING or keyed:
            for each in node.args:
                self._walk(each, f"`{name}`" + (" with a key" if keyed else ""))
        elif name == "pop" and isinstance(node.func, ast.Attribute) and not node.args:
            self._walk(node.func.value, "`pop`")

    def _walk(self, node: ast.expr, how: str) -> None:
        if self._walks.is_set(self._type(node)):
            self.found.append((node.lineno, f"{how} takes the order of a set: {ast.unparse(node)}"))


def _name(node: ast.AST) -> str:
    """The last name of a dotted one."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _base_name(type: ast.expr | None) -> str | None:
    """`set` of `set[str]`; annotations may be texts."""
    if isinstance(type, ast.Subscript):
        return _base_name(type.value)
    if isinstance(type, ast.Constant) and isinstance(type.value, str):
        return type.value.partition("[")[0]
    return (_name(type) or None) if type is not None else None


def _unwrapped_final(annotation: ast.expr) -> Type | None:
    """The type of `x: Final[T]`; None of a plain `Final`, which takes the type of its value."""
    if isinstance(annotation, ast.Name) and annotation.id == "Final":
        return None
    return annotation


def _literal(value: ast.expr | None) -> Type | None:
    """The type that the form of a value shows by itself."""
    match value:
        case ast.Set() | ast.SetComp():
            return _A_SET
        case ast.Call(func=ast.Name(id=("set" | "frozenset"))):
            return _A_SET
        case ast.Call(func=ast.Name(id=name)) if name[:1].isupper():
            return ast.Name(name)
        case ast.Dict() | ast.DictComp():
            return ast.Name("dict")
        case ast.List() | ast.ListComp() | ast.Tuple() | ast.Constant():
            return ast.Name("object")
    return None


def _is_keys(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("keys", "items")
    )


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


@lru_cache
def set_walks_of(root: Path) -> tuple[tuple[str, int, str], ...]:
    """Those of the package whose directory is `root`; it takes seconds, and several tests look at them."""
    return tuple(set_walks(load(root)))


def set_walks(modules: Iterable[Module]) -> Iterator[tuple[str, int, str]]:
    """The name of the module, the line and the walk, for each place at which simulated code walks a set."""
    return SetWalks(module for module in modules if module.room in SIMULATED_ROOMS).walks()
