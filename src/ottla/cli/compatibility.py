"""The page that says what of Apache Kafka is served: `docs/compatibility.md`, made from the code.

    python -m ottla.cli.compatibility > docs/compatibility.md

APIs come from the API table and the node's table of routes, settings from the configuration tables. Whether a
setting has an effect is read from the source: it counts as honoured if some code outside the tables asks for
it, by its name or by a constant that has it. Sets of known names ask for none. So the page cannot promise
what the code does not do; a test keeps the committed page current.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.node.api.routes import ROUTES
from ottla.node.config.definitions.group import CLIENT_METRICS, GROUP
from ottla.node.config.definitions.topic import TOPIC
from ottla.node.config.node_config import BROKER, broker_synonyms
from ottla.protocol.api import API, API_BY_NAME, Api, ListenerType

if TYPE_CHECKING:
    from ottla.node.config.definitions.config_def import ConfigKey

ROOT: Final = Path(__file__).parents[1]
# Modules of `node/config` that read settings; the others there declare, check or describe them.
_READERS: Final = (
    "node_config.py",
    "component_settings.py",
    "coordinator_settings.py",
    "properties.py",
    "client_metrics.py",
    "sasl.py",
)
# Rooms whose settings are those of clients and tools.
_OF_CLIENTS: Final = ("cli", "client", "spark", "console", "testing", "sim")
HONOURED: Final = "honoured"
ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
# Settings that name a class of Java; one that has no counterpart here stops the node from starting.
_REFUSED: Final = frozenset(
    (
        "principal.builder.class",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.server.callback.handler.class",
        "ssl.engine.factory.class",
    )
)

_OWN_REQUESTS: Final = "[decision 86](decisions/0086-own-requests.md)"
_HEAD: Final = """\
# Compatibility

<!-- Made by `python -m ottla.cli.compatibility > docs/compatibility.md`; do not edit. -->

What of Apache Kafka 4.4 this version serves, made from the tables that the code itself uses. Deliberate
differences in behaviour are in [decisions/](decisions/).
"""


_KAFKA_4_4: Final = """\
## Kafka 4.4

Of Kafka 4.4 only the Java client can be had, and no broker. So the messages, the table of APIs and the error
codes are compared with those of the Java client 4.4.0, while what a broker does is compared with Apache Kafka
4.3.1 where that does the same. What is new is from here:

| what | KIP | checked with a client of 4.4 | by the KIP's text alone |
|---|---|---|---|
| ApiVersions 5: the cluster and the node that a client means | 1242 | \
a Java client goes back to its bootstrap servers | a node id counts only beside a cluster id |
| TxnOffsetCommit 6: topics by id | 1319 | \
a Java producer commits the offsets of a consumer | errors of stale members and unknown groups |
| DeleteGroups 3: why a group was not deleted | 1331 | \
the Java admin client deletes groups | the texts; nothing here fails with GROUP_DELETION_FAILED |
| StreamsGroupHeartbeat 1: the broker asks for a description of the application; offsets of tasks | 1331 | | \
Kafka Streams 4.4 cannot be had; 4.3 goes on with version 0 |
| StreamsGroupTopologyDescriptionUpdate, StreamsGroupDescribe 1 | 1331, 1357 | \
the Java admin client describes groups | \
Kafka needs a plugin, here the coordinator keeps them ([decision 24](decisions/0024-streams-groups.md)) |
| UnregisterController: forget a controller that is gone, from metadata.version 4.4-IV2 | 1312 | \
the Java admin client is refused one that is unknown | a controller that still runs registers again |
| ACLs for ranges of addresses (`10.0.0.0/8`), from metadata.version 4.4-IV1 | 1276 | \
the Java admin client creates them | which texts are ranges, and which addresses are in one |
| dead letters of share groups, from share.version 2 | 1191 | \
names and defaults of the settings of topics, levels of share.version | settings of groups and brokers, \
headers, states; written exactly once, and never dropped: \
[decision 87](decisions/0087-dead-letters-exactly-once.md) |
| metadata.version 4.4-IV0 to 4.4-IV2 | | names, levels and what they change are those of Kafka's table | |

New clusters begin at metadata.version 4.3-IV0, so that Apache Kafka 4.3.1 can use their directories. What
needs a later one is refused until an operator raises it (`ottla cluster features --set metadata.version=33`,
or `kafka-features upgrade`); after that there is no way back, as in Kafka. Dead letters of share groups need
share.version 2 (`ottla cluster features --set share.version=2`): Apache Kafka 4.3.1 does not know its state
of a record.
"""


def page() -> str:
    return "\n".join((_HEAD, *_apis(), *_kips(), _KAFKA_4_4, *_settings())).rstrip() + "\n"


def _apis() -> Iterator[str]:
    kafkas = [api for _, api in sorted(API.items()) if api.is_of_kafka]
    served = [api for api in kafkas if api.key in ROUTES]
    missing = [api for api in kafkas if api.key not in ROUTES]
    yield f"## APIs\n\n{len(served)} of {len(kafkas)} APIs are served, in all versions that Kafka 4.4 has.\n"
    yield "| key | API | versions | listeners |"
    yield "|---:|---|---|---|"
    for api in served:
        yield f"| {api.key} | {api.name} | {_versions(api)} | {_listeners(api)} |"
    if missing:
        yield "\nNot served, and not announced:\n"
        yield "| key | API | versions in Kafka 4.4 | listeners |"
        yield "|---:|---|---|---|"
    for api in missing:
        yield f"| {api.key} | {api.name} | {_versions(api)} | {_listeners(api)} |"
    yield f"\nNot of Kafka, and announced to Ottla's own clients only ({_OWN_REQUESTS}):\n"
    yield "| key | API | versions | listeners |"
    yield "|---:|---|---|---|"
    for api in API.values():
        if not api.is_of_kafka:
            yield f"| {api.key} | {api.name} | {_versions(api)} | {_listeners(api)} |"
    yield ""


def _versions(api: Api) -> str:
    first, last = api.announced_versions(ListenerType.BROKER)
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
        yield f"| {kip.number} | {kip.title} | {_support_of(kip)} |"
    yield ""


def _support_of(kip: Kip) -> str:
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
        f"**{HONOURED}** settings have their effect; **{ACCEPTED}** ones have none in this version. "
        f"**{REFUSED}** ones name a class of Java: one that has no counterpart here stops the node from "
        "starting.\n"
    )
    yield "| settings of | honoured | accepted | refused |"
    yield "|---|---:|---:|---:|"
    kinds: dict[str, Mapping[str, ConfigKey]] = {
        "a broker": BROKER,
        "a topic": TOPIC,
        "a group": GROUP,
        "client metrics": CLIENT_METRICS,
    }
    for title, table in kinds.items():
        effects = [effect(title, name) for name, key in table.items() if not key.internal]
        counts = " | ".join(str(effects.count(each)) for each in (HONOURED, ACCEPTED, REFUSED))
        yield f"| {title} | {counts} |"
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
    names, attributes = _used_names()
    if name in _REFUSED:
        return REFUSED
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
        # Of groups that have none of their own, as group.consumer.session.timeout.ms, and bounds of what a
        # group may be given, as group.consumer.min.session.timeout.ms.
        kind, _, rest = name.removeprefix("group.").partition(".")
        limit = re.sub("^(min|max)[.]", "", rest)
        of_group = [f"{kind}.{each}" for each in (rest, limit, f"num.{limit}") if f"{kind}.{each}" in GROUP]
        if name.startswith("group.") and any(effect("a group", each) == HONOURED for each in of_group):
            return HONOURED
    return ACCEPTED


@lru_cache(maxsize=1)
def _used_names() -> tuple[frozenset[str], frozenset[str]]:
    """The strings that the code uses other than as keys of a table, and the attributes that it reads."""
    names: set[str] = set()
    attributes: set[str] = set()
    trees = {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in _OF_CLIENTS
    }
    constants = {_module(path): dict(_constants(tree)) for path, tree in trees.items()}
    for path, tree in trees.items():
        is_table = path.parts[:2] == ("node", "config") and path.name not in _READERS
        is_table = is_table or path.as_posix() == "node/server/start_warnings.py"
        known = constants[_module(path)] | dict(_imported(tree, constants))
        sets = _sets_of_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and path.as_posix() != "log/config/log_config.py":
                attributes.add(node.attr)
            if not is_table and node not in sets:
                names.update(_asked_for(node, known))
        if path.as_posix() == "log/config/log_config.py":
            attributes.update(_read_by_properties(tree))
    return frozenset(names), frozenset(attributes)


def _module(path: Path) -> str:
    return ".".join(("ottla", *path.with_suffix("").parts))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The constants of a module that are texts, by their names."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                    yield target.id, node.value.value


def _imported(tree: ast.Module, constants: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                value = constants.get(node.module or "", {}).get(alias.name)
                if value is not None:
                    yield alias.asname or alias.name, value


def _sets_of_names(tree: ast.Module) -> set[ast.AST]:
    """The nodes of a module's constant sets: they have names that are known, which asks for none of them."""
    found: set[ast.AST] = set()
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "frozenset":
            found.update(ast.walk(value))
    return found


def _asked_for(node: ast.AST, constants: Mapping[str, str]) -> Iterator[str]:
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
        elif isinstance(child, ast.Name) and child.id in constants:
            yield constants[child.id]
        elif isinstance(child, ast.JoinedStr):
            yield from _formatted(child)


def _formatted(node: ast.JoinedStr) -> Iterator[str]:
    """The settings that a text as `f"ssl.{kind}.password"` may name."""
    parts = [str(part.value) if isinstance(part, ast.Constant) else None for part in node.values]
    is_name = parts[0] is not None and all(part is None or re.fullmatch(r"[a-z.]+", part) for part in parts)
    if is_name and "." in str(parts[0]):
        pattern = re.compile("".join(r"\w+" if part is None else re.escape(part) for part in parts))
        yield from (name for name in BROKER if pattern.fullmatch(name))


def _read_by_properties(tree: ast.Module) -> Iterator[str]:
    """The fields that `LogConfig` derives others from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


class Kip(NamedTuple):
    number: int
    title: str
    needs: Mapping[str, int]
    """Versions of APIs; served if a node serves them all."""


# fmt: off
KIPS: Final[tuple[Kip, ...]] = (
    Kip(11, "authorization by ACLs", {"CreateAcls": 1, "DeleteAcls": 1, "DescribeAcls": 1}),
    Kip(43, "SASL mechanisms", {"SaslHandshake": 1}),
    Kip(48, "delegation tokens", {
        "CreateDelegationToken": 1, "RenewDelegationToken": 1, "ExpireDelegationToken": 1,
        "DescribeDelegationToken": 1
    }),
    Kip(74, "limits on the size of fetches", {"Fetch": 4}),
    Kip(79, "offsets by time", {"ListOffsets": 1}),
    Kip(84, "SCRAM", {
        "SaslAuthenticate": 0, "DescribeUserScramCredentials": 0, "AlterUserScramCredentials": 0
    }),
    Kip(98, "idempotent and transactional producers", {
        "InitProducerId": 0, "AddPartitionsToTxn": 0, "AddOffsetsToTxn": 0, "EndTxn": 0,
        "TxnOffsetCommit": 0
    }),
    Kip(101, "leader epochs instead of high watermarks for truncation", {"OffsetForLeaderEpoch": 2}),
    Kip(107, "deletion of records before an offset", {"DeleteRecords": 0}),
    Kip(110, "zstd", {"Produce": 7, "Fetch": 10}),
    Kip(113, "several data directories, and moves between them", {
        "AlterReplicaLogDirs": 1, "DescribeLogDirs": 1
    }),
    Kip(124, "request quotas", {"DescribeClientQuotas": 0, "AlterClientQuotas": 0}),
    Kip(133, "describing and changing settings", {"DescribeConfigs": 1, "AlterConfigs": 0}),
    Kip(152, "errors of SASL authentication", {"SaslAuthenticate": 0}),
    Kip(195, "adding partitions", {"CreatePartitions": 0}),
    Kip(226, "changing a broker's settings while it runs", {"DescribeConfigs": 1, "AlterConfigs": 0}),
    Kip(227, "incremental fetch sessions", {"Fetch": 7}),
    Kip(229, "deleting groups", {"DeleteGroups": 0}),
    Kip(255, "logins by OAuth tokens", {"SaslAuthenticate": 0}),
    Kip(290, "prefixed ACLs", {"CreateAcls": 1, "DeleteAcls": 1, "DescribeAcls": 1}),
    Kip(320, "detection of truncated logs by clients", {"OffsetForLeaderEpoch": 3, "Fetch": 9}),
    Kip(339, "changing single settings", {"IncrementalAlterConfigs": 0}),
    Kip(345, "static members of groups", {"JoinGroup": 5, "LeaveGroup": 3}),
    Kip(360, "producers that recover by a new epoch", {"InitProducerId": 3}),
    Kip(368, "logins that are renewed on an open connection", {"SaslAuthenticate": 1}),
    Kip(371, "rules that make users of certificates", {"SaslHandshake": 1}),
    Kip(394, "member ids before joining", {"JoinGroup": 4}),
    Kip(405, "tiered storage", {"Fetch": 14, "ListOffsets": 9}),
    Kip(430, "authorized operations in descriptions", {"DescribeGroups": 3, "Metadata": 8}),
    Kip(447, "one transactional producer for many partitions", {"TxnOffsetCommit": 3, "OffsetFetch": 7}),
    Kip(455, "reassignment of partitions", {
        "AlterPartitionReassignments": 0, "ListPartitionReassignments": 0
    }),
    Kip(460, "election of leaders", {"ElectLeaders": 1}),
    Kip(464, "the broker's defaults for new topics", {"CreateTopics": 4}),
    Kip(467, "errors of single records", {"Produce": 8}),
    Kip(482, "tagged fields", {"ApiVersions": 3}),
    Kip(496, "deleting committed offsets", {"OffsetDelete": 0}),
    Kip(511, "names and versions of clients", {"ApiVersions": 3}),
    Kip(516, "topic ids", {"Metadata": 10, "Fetch": 13, "DeleteTopics": 6}),
    Kip(518, "listing groups by state", {"ListGroups": 4}),
    Kip(525, "settings in the answer to a new topic", {"CreateTopics": 5}),
    Kip(546, "client quotas", {"DescribeClientQuotas": 0, "AlterClientQuotas": 0}),
    Kip(554, "SCRAM credentials", {"DescribeUserScramCredentials": 0, "AlterUserScramCredentials": 0}),
    Kip(569, "types and documentation of settings", {"DescribeConfigs": 3}),
    Kip(584, "feature levels", {"UpdateFeatures": 0, "ApiVersions": 3}),
    Kip(595, "the quorum of controllers", {
        "Vote": 0, "BeginQuorumEpoch": 0, "EndQuorumEpoch": 0, "DescribeQuorum": 0
    }),
    Kip(599, "quotas on changes of partitions", {
        "CreateTopics": 6, "DeleteTopics": 5, "CreatePartitions": 3
    }),
    Kip(612, "limits on the rate of new connections", {"DescribeClientQuotas": 0, "AlterClientQuotas": 0}),
    Kip(630, "snapshots of the metadata, for other nodes", {"FetchSnapshot": 0}),
    Kip(664, "finding and ending hanging transactions", {
        "DescribeProducers": 0, "DescribeTransactions": 0, "ListTransactions": 0, "WriteTxnMarkers":
        1
    }),
    Kip(699, "several coordinators in one request", {"FindCoordinator": 4}),
    Kip(700, "description of the cluster", {"DescribeCluster": 0}),
    Kip(709, "offsets of several groups in one request", {"OffsetFetch": 8}),
    Kip(714, "metrics of clients", {"GetTelemetrySubscriptions": 0, "PushTelemetry": 0}),
    Kip(734, "the offset of the greatest timestamp", {"ListOffsets": 7}),
    Kip(768, "OAuth tokens of providers, checked by their keys", {"SaslAuthenticate": 0}),
    Kip(800, "reasons for joining and leaving", {"JoinGroup": 8, "LeaveGroup": 5}),
    Kip(827, "sizes of data directories", {"DescribeLogDirs": 4}),
    Kip(836, "how far members of the quorum lag", {"DescribeQuorum": 1}),
    Kip(848, "the consumer protocol: groups balanced by the broker", {
        "ConsumerGroupHeartbeat": 0, "ConsumerGroupDescribe": 0
    }),
    Kip(853, "changing the voters of the quorum", {
        "AddRaftVoter": 0, "RemoveRaftVoter": 0, "UpdateRaftVoter": 0
    }),
    Kip(858, "data directories under KRaft", {"AssignReplicasToDirs": 0}),
    Kip(890, "transactions that late messages cannot enter", {
        "Produce": 12, "EndTxn": 5, "TxnOffsetCommit": 5, "AddPartitionsToTxn": 4
    }),
    Kip(932, "share groups", {
        "ShareGroupHeartbeat": 1, "ShareGroupDescribe": 1, "ShareFetch": 1, "ShareAcknowledge": 1
    }),
    Kip(939, "two-phase commit", {"InitProducerId": 6}),
    Kip(950, "turning tiered storage off", {"IncrementalAlterConfigs": 0}),
    Kip(951, "the new leader in errors", {"Produce": 10, "Fetch": 16}),
    Kip(966, "eligible leader replicas", {"DescribeTopicPartitions": 0}),
    Kip(994, "transactions by duration", {"ListTransactions": 1}),
    Kip(1023, "followers that begin behind remote storage", {"ListOffsets": 11}),
    Kip(1043, "all types of groups in lists", {"ListGroups": 5, "DescribeGroups": 6}),
    Kip(1071, "streams groups", {"StreamsGroupHeartbeat": 0, "StreamsGroupDescribe": 0}),
    Kip(1142, "listing what has settings", {"ListConfigResources": 1}),
    Kip(1152, "transactions by pattern", {"ListTransactions": 2}),
    Kip(1242, "detection of connections to another node than the one that is meant", {"ApiVersions": 5}),
    Kip(1312, "forgetting controllers that are gone", {"UnregisterController": 0}),
    Kip(1319, "topic ids in offsets of transactions", {"TxnOffsetCommit": 6}),
    Kip(1331, "descriptions of streams applications", {
        "StreamsGroupHeartbeat": 1, "StreamsGroupDescribe": 1, "StreamsGroupTopologyDescriptionUpdate": 0
    }),
    Kip(1357, "the assignor of a streams group", {"StreamsGroupDescribe": 1}),
)
# fmt: on


if __name__ == "__main__":
    print(page(), end="")
