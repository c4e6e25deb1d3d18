"""The page that says what of Apache Kafka is served: `docs/compatibility.md`, made from the code.

    python -m ottla.cli.compatibility > docs/compatibility.md

APIs come from the API table and the node's table of routes, settings from the configuration tables. Whether a
setting has an effect is read from the source: it counts as honoured if some code outside the tables asks for
it. So the page cannot promise what the code does not do; a test keeps the committed page current.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.cli.kips import KIPS, Kip
from ottla.node.api.routes import ROUTES
from ottla.node.config.node_config import BROKER, broker_synonyms
from ottla.node.config.tables.group import CLIENT_METRICS, GROUP
from ottla.node.config.tables.topic import TOPIC
from ottla.protocol.api import API, API_BY_NAME, Api, ListenerType

if TYPE_CHECKING:
    from ottla.node.config.types import ConfigKey

ROOT: Final = Path(__file__).parents[1]
# These name settings without acting on them.
# Modules of `node/config` that read settings; the others there declare, check or describe them.
_READERS: Final = ("node_config.py", "component_settings.py", "coordinator_settings.py", "properties.py")
HONOURED: Final = "honoured"
ACCEPTED: Final = "accepted"

_HEAD: Final = """\
# Compatibility

<!-- Made by `python -m ottla.cli.compatibility > docs/compatibility.md`; do not edit. -->

What of Apache Kafka 4.3 this version serves, made from the tables that the code itself uses. Deliberate
differences in behaviour are in [decisions/](decisions/).
"""


def page() -> str:
    return "\n".join((_HEAD, *_apis(), *_kips(), *_settings())).rstrip() + "\n"


def _apis() -> Iterator[str]:
    served = [API[key] for key in sorted(ROUTES)]
    missing = [api for key, api in sorted(API.items()) if key not in ROUTES]
    yield f"## APIs\n\n{len(served)} of {len(API)} APIs are served, in all versions that Kafka 4.3 has.\n"
    yield "| key | API | versions | listeners |"
    yield "|---:|---|---|---|"
    for api in served:
        yield f"| {api.key} | {api.name} | {_versions(api)} | {_listeners(api)} |"
    yield "\nNot served, and not announced:\n"
    yield "| key | API | versions in Kafka 4.3 | listeners |"
    yield "|---:|---|---|---|"
    for api in missing:
        yield f"| {api.key} | {api.name} | {_versions(api)} | {_listeners(api)} |"
    yield ""


def _versions(api: Api) -> str:
    first, last = api.announced(ListenerType.BROKER)
    text = f"{first} to {last}" if first != last else str(first)
    if first != api.min_version:
        text += f" (announced; answered from {api.min_version})"
    if api.latest_unstable:
        text += f"; {api.last_version} with `unstable.api.versions.enable`"
    return text


def _listeners(api: Api) -> str:
    return ", ".join(sorted(listener.value for listener in api.listeners))


def _kips() -> Iterator[str]:
    yield "## KIPs\n\nImprovement proposals that show on the wire, by the APIs and versions that they need.\n"
    yield "| KIP | what | served |"
    yield "|---|---|---|"
    for kip in KIPS:
        yield f"| {kip.number} | {kip.title} | {_served(kip)} |"
    yield ""


def _served(kip: Kip) -> str:
    missing = [
        name if name_missing else f"{name} {version}"
        for name, version in kip.needs.items()
        for name_missing in [API_BY_NAME[name].key not in ROUTES]
        if name_missing or API_BY_NAME[name].last_version < version
    ]
    if not missing:
        return "yes"
    return (
        f"no: {', '.join(missing)}"
        if len(missing) == len(kip.needs)
        else f"in part; not {', '.join(missing)}"
    )


def _settings() -> Iterator[str]:
    yield (
        "## Settings\n\nEvery name that Kafka 4.3 knows is accepted, checked and shown by DescribeConfigs. "
        f"**{HONOURED}** settings have their effect; **{ACCEPTED}** ones have none in this version.\n"
    )
    yield "| settings of | honoured | accepted |"
    yield "|---|---:|---:|"
    kinds: dict[str, Mapping[str, ConfigKey]] = {
        "a broker": BROKER,
        "a topic": TOPIC,
        "a group": GROUP,
        "client metrics": CLIENT_METRICS,
    }
    for title, table in kinds.items():
        effects = [effect(title, name) for name, key in table.items() if not key.internal]
        yield f"| {title} | {effects.count(HONOURED)} | {effects.count(ACCEPTED)} |"
    for title, table in kinds.items():
        yield f"\n### Settings of {title}\n"
        yield "| name | default | effect | changes | what it does |"
        yield "|---|---|---|---|---|"
        for name in sorted(table):
            if not table[name].internal:
                yield _setting(title, table[name])


def _setting(title: str, key: ConfigKey) -> str:
    default = key.show(key.default)
    shown = "" if default is None else f"`{default}`" if default else "(empty)"
    mode = key.mode.value if title == "a broker" else "while running"
    return f"| `{key.name}` | {_cell(shown)} | {effect(title, key.name)} | {mode} | {_cell(key.doc)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def effect(title: str, name: str) -> str:
    """Whether any code acts on a setting."""
    names, attributes = _used()
    if name in names:
        return HONOURED
    if title == "a topic":
        return HONOURED if name.replace(".", "_") in attributes else ACCEPTED
    if title == "a broker":
        # A broker's setting may work as the default of its topics', or as a coarser unit of another.
        stands_for = [topic for topic, key in TOPIC.items() if name in key.synonyms]
        if any(effect("a topic", topic) == HONOURED for topic in stands_for):
            return HONOURED
        finest = [other for other in BROKER if other != name and name in broker_synonyms(other)[1:]]
        if any(effect("a broker", other) == HONOURED for other in finest):
            return HONOURED
        # Bounds of what a group may be given, as group.consumer.min.session.timeout.ms.
        if re.sub(r"^group\.(\w+)\.(min|max)\.", r"\1.", name) in GROUP:
            return HONOURED
    return ACCEPTED


@lru_cache(maxsize=1)
def _used() -> tuple[frozenset[str], frozenset[str]]:
    """The strings that the code uses other than as keys of a table, and the attributes that it reads."""
    names: set[str] = set()
    attributes: set[str] = set()
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] in ("cli", "client", "spark", "console", "testing", "sim"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_table = relative.parts[:2] == ("node", "config") and relative.name not in _READERS
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and relative.as_posix() != "log/log_config.py":
                attributes.add(node.attr)
            if not is_table:
                names.update(_asked_for(node))
        if relative.as_posix() == "log/log_config.py":
            attributes.update(_read_by_properties(tree))
    return frozenset(names), frozenset(attributes)


def _asked_for(node: ast.AST) -> Iterator[str]:
    """The names in calls and subscripts, as `config.number("num.partitions")`, and in tuples of names."""
    children: list[ast.expr] = []
    if isinstance(node, ast.Call):
        children = node.args
    elif isinstance(node, ast.Subscript):
        children = [node.slice]
    elif isinstance(node, ast.Compare):
        children = [node.left, *node.comparators]
    elif isinstance(node, ast.Tuple | ast.Set | ast.List):
        children = node.elts
    for child in children:
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def _read_by_properties(tree: ast.Module) -> Iterator[str]:
    """The fields that `LogConfig` derives others from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


if __name__ == "__main__":
    print(page(), end="")
