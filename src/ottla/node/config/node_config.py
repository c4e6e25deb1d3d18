"""A node's configuration: Kafka's `server.properties`, flags of the start, and the cluster's settings.

`NodeConfig` is Kafka's `KafkaConfig`. A value comes from the first of these that has it: the cluster's
setting for this broker, the cluster's setting for all brokers, the start (flags over file), the default. The
first two live in the metadata log and change while the node runs; then a new NodeConfig replaces the old one.
Invariant: a NodeConfig never changes, and every value in it has passed its check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.node.config.definitions.config_def import ConfigError, ConfigKey, UpdateMode, Value
from ottla.node.config.definitions.coordinators import COORDINATORS
from ottla.node.config.definitions.iceberg import ICEBERG
from ottla.node.config.definitions.kraft import KRAFT
from ottla.node.config.definitions.log import LOG
from ottla.node.config.definitions.network import NETWORK
from ottla.node.config.definitions.remote import REMOTE
from ottla.node.config.definitions.replication import REPLICATION
from ottla.node.config.definitions.security import SECURITY
from ottla.node.config.definitions.topic import TOPIC
from ottla.node.config.definitions.zookeeper import METADATA_STORE, ZOOKEEPER, ZOOKEEPER_STORE
from ottla.node.config.listeners import Endpoint, parse_endpoints, parse_http_listener, parse_protocol_map
from ottla.node.config.rules import check_rules
from ottla.protocol.security_protocol import SecurityProtocol

BROKER: Final[Mapping[str, ConfigKey]] = {
    **NETWORK,
    **LOG,
    **REPLICATION,
    **KRAFT,
    **COORDINATORS,
    **SECURITY,
    **REMOTE,
    **ZOOKEEPER,
    **ICEBERG,
}

# A quorum of one has no second node to replicate to. Kafka's own sample configuration sets the same.
_ALONE: Final[Mapping[str, str]] = {
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}

# Names that set the same thing in coarser units, coarsest last, with their size in milliseconds.
_FINER_FIRST: Final[tuple[tuple[tuple[str, int], ...], ...]] = (
    (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)),
    (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
)
_SYNONYMS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    name: family for family in _FINER_FIRST for name, _ in family if family[0][0] != "log.flush.interval.ms"
} | {"log.flush.interval.ms": _FINER_FIRST[3]}


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The names that may give a broker setting its value, the first one that is set wins."""
    family = _SYNONYMS.get(name)
    if family is not None:
        return tuple(synonym for synonym, _ in family)
    if name.startswith("listener.name."):
        base = listener_base_name(name)
        return (name, base) if base in BROKER else (name,)
    return (name,)


def listener_base_name(name: str) -> str:
    """`ssl.keystore.location` of `listener.name.external.ssl.keystore.location`."""
    parts = name.split(".", 3)
    return parts[3] if len(parts) == 4 and parts[0] == "listener" and parts[1] == "name" else name


def broker_key(name: str) -> ConfigKey | None:
    """The definition of a broker setting, also for one that is prefixed by a listener's name."""
    key = BROKER.get(name)
    return key if key is not None else BROKER.get(listener_base_name(name))


class NodeConfig:
    """The settings of a node. `config.number("num.partitions")` and its like read one value."""

    __slots__ = (
        "_values",
        "advertised_listeners",
        "advertised_of_controller",
        "dynamic_broker",
        "dynamic_default",
        "given",
        "http_listener",
        "listeners",
        "schema_registry_listener",
        "security_protocols",
    )

    given: Mapping[str, str]
    """The settings that the node was started with, flags over file, by name."""
    dynamic_default: Mapping[str, str]
    """The cluster's settings for all brokers."""
    dynamic_broker: Mapping[str, str]
    """The cluster's settings for this broker."""
    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]
    """Where clients connect."""
    advertised_of_controller: tuple[Endpoint, ...]
    """Where other nodes reach the controller: as advertised, else as it listens."""
    http_listener: Endpoint | None
    """Where HTTP is answered, if it is."""
    schema_registry_listener: Endpoint | None
    """Where only the schema registry is answered for, if there is such a listener."""
    security_protocols: Mapping[str, SecurityProtocol]
    """The protocol of each listener, by its name; also of listeners that only other nodes have."""

    def __init__(
        self,
        given: Mapping[str, str] | None = None,
        *,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        self.given = _complete(given or {})
        self.dynamic_default = dict(dynamic_default or {})
        self.dynamic_broker = dict(dynamic_broker or {})
        self._values: dict[str, Value] = {name: key.default for name, key in BROKER.items()}
        is_legacy = self.given.get(METADATA_STORE, "").strip() == ZOOKEEPER_STORE
        for layer in (self.given, self.dynamic_default, self.dynamic_broker):
            for name, text in layer.items():
                key = broker_key(name)
                # What a migration from ZooKeeper left in a file means nothing, so it need not be valid.
                if key is not None and (is_legacy or not name.startswith("zookeeper.")):
                    self._values[name] = key.parse(text)
        protocols = parse_protocol_map(self.text("listener.security.protocol.map"))
        for name in self.names("controller.listener.names"):
            if "listener.security.protocol.map" not in self.given:
                protocols.setdefault(name.upper(), protocols["PLAINTEXT"])
        self.security_protocols = protocols
        self.listeners = parse_endpoints("listeners", self.names("listeners"), protocols)
        self.http_listener = parse_http_listener(self.text("http.listener"))
        self.schema_registry_listener = parse_http_listener(
            self.text("schema.registry.listener"), "schema.registry.listener"
        )
        advertised = (
            self.listeners
            if self._values["advertised.listeners"] is None
            else parse_endpoints("advertised.listeners", self.names("advertised.listeners"), protocols)
        )
        # As in the sample file of Apache Kafka, one setting may have listeners of both kinds.
        of_controller = self.controller_listener_names
        self.advertised_listeners = tuple(each for each in advertised if each.name not in of_controller)
        controllers = {each.name: each for each in advertised if each.name in of_controller}
        others = (each for each in self.listeners_of_controller if each.name not in controllers)
        self.advertised_of_controller = (*controllers.values(), *others)
        check_rules(self)

    def with_dynamic(
        self, *, default: Mapping[str, str], broker: Mapping[str, str]
    ) -> tuple[NodeConfig, list[str]]:
        """Return this configuration with other settings of the cluster, and a line for each unusable one."""
        problems: list[str] = []
        default = _filter_usable(default, problems, per_broker=False)
        broker = _filter_usable(broker, problems, per_broker=True)
        try:
            return NodeConfig(self.given, dynamic_default=default, dynamic_broker=broker), problems
        except ConfigError as error:
            # Values that are fine alone but not together: keep the settings in force.
            return self, [*problems, str(error)]

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, int | float), name
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def text(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list; an unset one is empty."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def first_set(self, name: str) -> Any:
        """The value of a setting that has coarser synonyms, in milliseconds."""
        family = _SYNONYMS[name]
        for layer in (self.dynamic_broker, self.dynamic_default, self.given):
            for synonym, unit_ms in family:
                if synonym in layer:
                    return _in_ms(self._values[synonym], unit_ms)
        for synonym, unit_ms in family:
            if BROKER[synonym].default is not None:
                return _in_ms(BROKER[synonym].default, unit_ms)
        raise AssertionError(name)

    def of_listener(self, listener: str, name: str, default: int) -> int:
        """The number that a setting has for a listener, by its prefix."""
        value = self._values.get(f"listener.name.{listener.lower()}.{name}", default)
        assert isinstance(value, int), (listener, name)
        return value

    def with_listener_prefix(self, listener: str, name: str) -> Value:
        """The value that a setting has for a listener: by its prefix, else in general."""
        prefixed = self._values.get(f"listener.name.{listener.lower()}.{name}")
        return self._values[name] if prefixed is None else prefixed

    def is_set_for_listener(self, listener: str, name: str) -> bool:
        """Whether the setting has the prefix of the listener."""
        return f"listener.name.{listener.lower()}.{name}" in self._values

    def given_text(self, name: str) -> str | None:
        """The text of a setting as it was given, also of one that has no definition; None if it was not."""
        for layer in (self.dynamic_broker, self.dynamic_default, self.given):
            if name in layer:
                return layer[name]
        return None

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        name = self["inter.broker.listener.name"]
        if name is not None:
            return str(name).upper()
        protocol = SecurityProtocol[self.text("security.inter.broker.protocol").upper()]
        for endpoint in self.advertised_listeners:
            if endpoint.protocol is protocol:
                return endpoint.name
        return protocol.name

    def is_set(self, name: str) -> bool:
        """Whether the value is not the default."""
        return name in self.given or name in self.dynamic_default or name in self.dynamic_broker

    @property
    def node_id(self) -> int:
        return self.number("node.id")

    @property
    def rack(self) -> str | None:
        value = self._values["broker.rack"]
        return None if value is None else str(value)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.names("process.roles")

    @property
    def is_controller(self) -> bool:
        return "controller" in self.names("process.roles")

    @property
    def alone(self) -> bool:
        """Whether no quorum is configured, so that the node is a quorum by itself."""
        return not (
            self.names("controller.quorum.voters")
            or self.names("controller.quorum.bootstrap.servers")
            or self.uses_zookeeper
        )

    @property
    def uses_zookeeper(self) -> bool:
        """Whether metadata are in ZooKeeper, the legacy mode, and not in a quorum."""
        return self.text(METADATA_STORE) == ZOOKEEPER_STORE

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return self.names("log.dirs") or self.names("log.dir")

    @property
    def metadata_log_dir(self) -> str:
        value = self._values["metadata.log.dir"]
        return self.log_dirs[0] if value is None else str(value)

    @property
    def controller_listener_names(self) -> tuple[str, ...]:
        return tuple(name.upper() for name in self.names("controller.listener.names"))

    @property
    def listeners_of_controller(self) -> tuple[Endpoint, ...]:
        names = self.controller_listener_names
        return tuple(endpoint for endpoint in self.listeners if endpoint.name in names)

    def topic_defaults(self) -> dict[str, Value]:
        """The settings of a topic that has none of its own, by the names of topic settings."""
        defaults: dict[str, Value] = {}
        for name, key in TOPIC.items():
            if not key.synonyms:
                defaults[name] = key.default
            elif key.synonyms[0] in _SYNONYMS:
                defaults[name] = self.first_set(key.synonyms[0])
            else:
                defaults[name] = self._values[key.synonyms[0]]
        return defaults


def _complete(given: Mapping[str, str]) -> dict[str, str]:
    """Complete the settings that the node was started with by those that follow from them."""
    settings = dict(given)
    for one, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if one in settings:
            settings.setdefault(other, settings[one])
    if "controller.quorum.voters" in settings or "controller.quorum.bootstrap.servers" in settings:
        return settings
    if settings.get(METADATA_STORE) == ZOOKEEPER_STORE:
        return settings
    return {**_ALONE, **settings}


def _in_ms(value: Value, unit_ms: int) -> int:
    assert isinstance(value, int)
    return value if value < 0 else value * unit_ms


def _filter_usable(layer: Mapping[str, str], problems: list[str], *, per_broker: bool) -> dict[str, str]:
    usable: dict[str, str] = {}
    for name, text in layer.items():
        key = broker_key(name)
        if key is None:
            usable[name] = text
            continue
        allowed = (
            (UpdateMode.CLUSTER_WIDE, UpdateMode.PER_BROKER) if per_broker else (UpdateMode.CLUSTER_WIDE,)
        )
        if key.mode not in allowed:
            problems.append(f"{name} is {key.mode.value} and cannot be changed this way; it is ignored")
            continue
        try:
            key.parse(text)
        except ConfigError as error:
            problems.append(f"{error}; it is ignored")
        else:
            usable[name] = text
    return usable


# Names of Apache Kafka before 4.0 that are in many files and mean nothing any more.
_REMOVED: Final = (
    "zookeeper.",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "inter.broker.protocol.version",
    "leader.imbalance.per.broker.percentage",
    "log.message.downconversion.enable",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "metadata.log.segment.min.bytes",
    "offsets.commit.required.acks",
    "password.encoder.",
    "reserved.broker.max.id",
)
_PREFIXES: Final = ("listener.name.", "rsm.config.", "rlmm.config.", "confluent.")
# What is not a setting of ours is a property of the catalog's library.
_CATALOG: Final = "table.catalog."
# Settings of the authorizer, which are not among the broker's in Kafka either.
_OF_PLUGINS: Final = frozenset(("super.users", "allow.everyone.if.no.acl.found"))


def unknown_names(given: Iterable[str]) -> list[str]:
    """Return a line for each unknown name, with the nearest known one. Those of ZooKeeper are known where
    metadata.store is set.
    """
    lines: list[str] = []
    names = list(given)
    known = (
        BROKER
        if METADATA_STORE in names
        else {name: BROKER[name] for name in BROKER if name not in ZOOKEEPER}
    )
    for name in names:
        if name in known or name in _OF_PLUGINS or name.startswith(_PREFIXES):
            continue
        if name.startswith(_CATALOG):
            from ottla.tables.settings import meant_property

            meant = meant_property(name.removeprefix(_CATALOG))
            if meant is not None:
                lines.append(f"unknown setting {name}; did you mean {_CATALOG}{meant}?")
            continue
        if name.startswith(_REMOVED):
            lines.append(f"unknown setting {name}: Apache Kafka dropped it in 4.0; it is ignored")
            continue
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "it is ignored"
        lines.append(f"unknown setting {name}; {hint}")
    return lines
