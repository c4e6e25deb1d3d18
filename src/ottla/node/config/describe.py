"""Settings as DescribeConfigs shows them to clients: value, source, synonyms, documentation.

A synonym is a place where the value could have come from: the cluster's settings, the start's, the default,
in the order of their precedence. The first synonym is where it does come from. Values of passwords never
leave the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Final

from ottla.metadata.image.entities import ConfigResourceType
from ottla.node.config.definitions.config_def import ConfigKey, UpdateMode, Value
from ottla.node.config.definitions.group import CLIENT_METRICS, GROUP
from ottla.node.config.definitions.topic import OWN_TOPIC_SETTINGS, TOPIC
from ottla.node.config.node_config import BROKER, NodeConfig, broker_key, broker_synonyms
from ottla.protocol.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym

# Settings that exist only in the metadata log: a broker does not list them until they are set.
DYNAMIC_ONLY: Final = frozenset(
    (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)

# Settings that Apache Kafka has no default for; that Ottla has one is not shown as if it were Kafka's.
_WITHOUT_DEFAULT: Final = frozenset(("controller.listener.names", "node.id", "process.roles"))


DEFINITIONS: Final[Mapping[int, Mapping[str, ConfigKey]]] = {
    ConfigResourceType.TOPIC: TOPIC,
    ConfigResourceType.GROUP: GROUP,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS,
}


def definition_of(resource_type: int, name: str) -> ConfigKey | None:
    """The definition of a setting of a resource of this type; None if it has no such setting."""
    if resource_type == ConfigResourceType.BROKER:
        return broker_key(name)
    return DEFINITIONS.get(resource_type, {}).get(name)


def is_sensitive(resource_type: int, name: str) -> bool:
    """Whether the value of a setting must not be shown: by the type of the setting. That of an unknown one,
    as of a plugin, is not known, so its value is not shown either.
    """
    if resource_type == ConfigResourceType.BROKER_LOGGER:
        return False
    key = definition_of(resource_type, name)
    return key is None or key.sensitive


class ConfigValueSource(IntEnum):
    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigView:
    """The part of the settings that a client asked for: which names, and how much of each."""

    __slots__ = ("_config", "_documentation", "_names", "_synonyms")

    def __init__(
        self, config: NodeConfig, names: Collection[str] | None, *, synonyms: bool, documentation: bool
    ) -> None:
        self._config = config
        self._names = None if names is None else frozenset(names)
        self._synonyms = synonyms
        self._documentation = documentation

    def _is_wanted(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _asks_for(self, name: str) -> bool:
        """Say whether a setting of Ottla alone is asked for by its name. Apache Kafka does not have them, so
        they are listed only where they are set.
        """
        return self._names is not None and name in OWN_TOPIC_SETTINGS

    def topic(self, overrides: Mapping[str, str]) -> list[DescribeConfigsResourceResult]:
        defaults = self._config.topic_defaults()
        results = []
        for name, key in TOPIC.items():
            if not self._is_wanted(name):
                continue
            if key.internal and name not in overrides and not self._asks_for(name):
                continue
            value = key.parse(overrides[name]) if name in overrides else defaults[name]
            synonyms = self._broker_synonyms(key.synonyms[0]) if key.synonyms else []
            if name in overrides:
                synonyms.insert(0, _synonym(key, name, key.show(value), ConfigValueSource.TOPIC))
            results.append(self._entry(key, name, value, synonyms, read_only=False))
        return results

    def group(self, overrides: Mapping[str, str]) -> list[DescribeConfigsResourceResult]:
        results = []
        for name, key in GROUP.items():
            if not self._is_wanted(name):
                continue
            broker = self._config[key.synonyms[0]] if key.synonyms else key.default
            value = key.parse(overrides[name]) if name in overrides else broker
            synonyms = (
                self._broker_synonyms(key.synonyms[0])
                if key.synonyms
                else [_synonym(key, name, key.show(key.default), ConfigValueSource.DEFAULT)]
            )
            if name in overrides:
                synonyms.insert(0, _synonym(key, name, key.show(value), ConfigValueSource.GROUP))
            results.append(self._entry(key, name, value, synonyms, read_only=False))
        return results

    def client_metrics(self, overrides: Mapping[str, str]) -> list[DescribeConfigsResourceResult]:
        results = []
        for name, key in CLIENT_METRICS.items():
            if not self._is_wanted(name):
                continue
            value = key.parse(overrides[name]) if name in overrides else key.default
            synonyms = (
                [_synonym(key, name, key.show(value), ConfigValueSource.CLIENT_METRICS)]
                if name in overrides
                else []
            )
            results.append(self._entry(key, name, value, synonyms, read_only=False))
        return results

    def broker(self) -> list[DescribeConfigsResourceResult]:
        """Describe all settings of this broker."""
        config = self._config
        results = []
        for name, key in BROKER.items():
            if (key.internal or name in DYNAMIC_ONLY) and not config.is_set(name):
                continue
            if self._is_wanted(name):
                results.append(self._broker_entry(name, key, config[name], lambda _: True))
        layers = (config.dynamic_broker, config.dynamic_default, config.given)
        unlisted = dict.fromkeys(name for layer in layers for name in layer if name not in BROKER)
        results += [self._unlisted_entry(name) for name in unlisted if self._is_wanted(name)]
        return results

    def broker_default(self) -> list[DescribeConfigsResourceResult]:
        """Describe the cluster's settings for all brokers."""
        return [
            self._broker_entry(name, key, key.parse(text), _is_default_source)
            for name, text in self._config.dynamic_default.items()
            if self._is_wanted(name) and (key := broker_key(name)) is not None
        ]

    def _broker_entry(
        self, name: str, key: ConfigKey, value: Value, wanted: Callable[[DescribeConfigsSynonym], bool]
    ) -> DescribeConfigsResourceResult:
        synonyms = [synonym for synonym in self._broker_synonyms(name) if wanted(synonym)]
        return self._entry(key, name, value, synonyms, read_only=key.mode is UpdateMode.READ_ONLY)

    def _unlisted_entry(self, name: str) -> DescribeConfigsResourceResult:
        """Describe a setting that is no broker's own: one of a listener, of a plugin, or an unknown name.

        Its type is not known, so Kafka does not show its value either.
        """
        synonyms = [
            DescribeConfigsSynonym(name=synonym.name, value=None, source=synonym.source)
            for synonym in self._broker_synonyms(name)
        ]
        return DescribeConfigsResourceResult(
            name=name,
            value=None,
            read_only=True,
            config_source=synonyms[0].source if synonyms else ConfigValueSource.DEFAULT,
            is_sensitive=True,
            synonyms=synonyms if self._synonyms else [],
            config_type=0,
        )

    def _broker_synonyms(self, name: str) -> list[DescribeConfigsSynonym]:
        """The places where a broker's setting may come from, in the order of their precedence. Those before
        the setting's own name (with a listener's) belong to another one.
        """
        config = self._config
        found: list[DescribeConfigsSynonym] = []
        for layer, source in (
            (config.dynamic_broker, ConfigValueSource.DYNAMIC_BROKER),
            (config.dynamic_default, ConfigValueSource.DYNAMIC_DEFAULT_BROKER),
            (config.given, ConfigValueSource.STATIC_BROKER),
        ):
            for synonym in broker_synonyms(name):
                key = broker_key(synonym)
                if synonym in layer:
                    value = None if key is None or key.sensitive else layer[synonym]
                    found.append(DescribeConfigsSynonym(name=synonym, value=value, source=source))
        for synonym in broker_synonyms(name):
            key = BROKER.get(synonym)
            if key is not None and key.default is not None and synonym not in _WITHOUT_DEFAULT:
                found.append(_synonym(key, synonym, key.show(key.default), ConfigValueSource.DEFAULT))
        while found and found[0].name != name:
            del found[0]
        return found

    def _entry(
        self,
        key: ConfigKey,
        name: str,
        value: Value,
        synonyms: list[DescribeConfigsSynonym],
        *,
        read_only: bool,
    ) -> DescribeConfigsResourceResult:
        return DescribeConfigsResourceResult(
            name=name,
            value=key.show(value),
            read_only=read_only,
            config_source=synonyms[0].source if synonyms else ConfigValueSource.DEFAULT,
            is_sensitive=key.sensitive,
            synonyms=synonyms if self._synonyms else [],
            config_type=key.type,
            documentation=key.doc if self._documentation else None,
        )


def _synonym(
    key: ConfigKey, name: str, value: str | None, source: ConfigValueSource
) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=None if key.sensitive else value, source=source)


def _is_default_source(synonym: DescribeConfigsSynonym) -> bool:
    return synonym.source == ConfigValueSource.DYNAMIC_DEFAULT_BROKER
