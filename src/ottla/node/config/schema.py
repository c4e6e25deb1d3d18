"""The validation of settings that the controller writes into the metadata log.

It implements `ConfigSchema` of the controller over the definitions. Settings of topics, groups and client
metrics are validated here; those of brokers by the broker they are for (`check_broker_settings`), before it
forwards the request, because only that broker knows the settings that it was started with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from ottla.log.config.log_config import LogConfig, field_name
from ottla.metadata.controller.state import EffectiveConfig
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.config.client_metrics import parse_matching_patterns
from ottla.node.config.definitions.config_def import ConfigError, ConfigKey, ConfigType, UpdateMode, Value
from ottla.node.config.definitions.group import CLIENT_METRICS
from ottla.node.config.definitions.topic import DEAD_LETTER_ENABLE, TABLE_SETTINGS, TOPIC
from ottla.node.config.describe import DEFINITIONS, ConfigValueSource, definition_of
from ottla.node.config.node_config import NodeConfig, broker_key, listener_base_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import TimestampType

_KINDS: Final = {
    ConfigResourceType.TOPIC: "topic",
    ConfigResourceType.GROUP: "group",
    ConfigResourceType.CLIENT_METRICS: "client metrics",
}
# A group's setting must lie between these of the broker, where the broker has them.
_GROUP_BOUNDS: Final = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.assignment.interval.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "streams.session.timeout.ms",
    "streams.heartbeat.interval.ms",
    "streams.assignment.interval.ms",
)
_THREADS: Final = frozenset(
    (
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    )
)
# The value of `local.retention.*` that stands for that of `retention.*`.
_AS_RETENTION: Final = -2
# The settings that say whether a topic can have a table.
_OFDEFINITIONS: Final = ("cleanup.policy", *TABLE_SETTINGS)
_MAX_COMPARED: Final = 100
MIN_CLIENT_METRICS_INTERVAL_MS: Final = 100
MAX_CLIENT_METRICS_INTERVAL_MS: Final = 60 * 60 * 1000


class NodeConfigSchema:
    """`ConfigSchema` as the definitions and the node's own configuration have it."""

    __slots__ = ("_config",)

    def __init__(self, config: Callable[[], NodeConfig]) -> None:
        self._config = config

    def validate(
        self, resource: ConfigResource, configs: Mapping[str, str], existing: Mapping[str, str]
    ) -> None:
        keys = DEFINITIONS.get(resource.type)
        if keys is None:
            return
        values = _parse(keys, _KINDS[ConfigResourceType(resource.type)], configs)
        if resource.type == ConfigResourceType.TOPIC:
            self._check_topic(values, configs, existing)
        elif resource.type == ConfigResourceType.GROUP:
            self._check_group(values)
        else:
            _check_client_metrics(resource.name, values)

    def _check_topic(
        self, values: Mapping[str, Value], configs: Mapping[str, str], existing: Mapping[str, str]
    ) -> None:
        effective = {**self._config().topic_defaults(), **values}
        low, high = effective["min.compaction.lag.ms"], effective["max.compaction.lag.ms"]
        assert isinstance(low, int)
        assert isinstance(high, int)
        if low > high:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"conflict topic config setting min.compaction.lag.ms ({low}) > "
                f"max.compaction.lag.ms ({high})",
            )
        if effective["remote.storage.enable"] is True:
            if not self._config().flag("remote.log.storage.system.enable"):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
                    "remote log storage: remote.log.storage.system.enable is false. Set it to true in the "
                    "settings of every broker, with rsm.config.storage.url",
                )
            _check_remote_topic(effective)
        elif (
            existing.get("remote.storage.enable") == "true" and not effective["remote.log.delete.on.disable"]
        ):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "It is invalid to disable remote storage without deleting remote data: set "
                "remote.log.delete.on.disable=true as well, which deletes it. To keep the data and only stop "
                "uploads, set remote.storage.enable=true and remote.log.copy.disable=true",
            )
        # A change of other settings is not refused for what has become wrong with the table since, as on a
        # broker that has lost pyiceberg or the address of the registry.
        changed = {name for name in _OFDEFINITIONS if configs.get(name) != existing.get(name)}
        has_table = effective["table.format"] != "none" or any(name in values for name in TABLE_SETTINGS)
        if changed and has_table:
            from ottla.node.config.topic_table import check_table_settings

            check_table_settings(self._config(), effective, is_new="table.format" in changed)

    def _check_group(self, values: Mapping[str, Value]) -> None:
        config = self._config()
        for name in _GROUP_BOUNDS:
            value = values.get(name)
            if not isinstance(value, int):
                continue
            kind, _, rest = name.partition(".")
            least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
            if value < config.number(least):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to {least}")
            if value > config.number(most):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {most}")
        standbys = values.get("streams.num.standby.replicas")
        if isinstance(standbys, int) and standbys > config.number("group.streams.max.standby.replicas"):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "streams.num.standby.replicas must be less than or equal to "
                "group.streams.max.standby.replicas",
            )
        for kind in ("consumer", "share", "streams"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            longest = values.get(session, config.number(f"group.{session}"))
            between = values.get(heartbeat, config.number(f"group.{heartbeat}"))
            assert isinstance(longest, int)
            assert isinstance(between, int)
            if longest <= between:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")

    def is_list(self, type: int, name: str) -> bool:
        key = definition_of(type, name)
        return key is not None and key.type is ConfigType.LIST

    def default(self, type: int, name: str) -> str | None:
        key = definition_of(type, name)
        if key is None:
            return None
        if type == ConfigResourceType.BROKER:
            return key.show(self._config()[name]) if name in self._config() else None
        return key.show(key.default)

    def topic_config(
        self, name: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str:
        return self._effective(TOPIC[name], topic, broker, cluster, self._config().topic_defaults())[0]

    def topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> list[EffectiveConfig]:
        defaults = self._config().topic_defaults()
        found = []
        for name in sorted(TOPIC):
            key = TOPIC[name]
            if not key.internal:
                value, source = self._effective(key, topic, broker, cluster, defaults)
                found.append(EffectiveConfig(name, value, False, int(source), key.sensitive))
        return found

    def _effective(
        self,
        key: ConfigKey,
        topic: Mapping[str, str],
        broker: Mapping[str, str],
        cluster: Mapping[str, str],
        defaults: Mapping[str, Value],
    ) -> tuple[str, ConfigValueSource]:
        if key.name in topic:
            return topic[key.name], ConfigValueSource.TOPIC
        for layer, source in (
            (broker, ConfigValueSource.DYNAMIC_BROKER),
            (cluster, ConfigValueSource.DYNAMIC_DEFAULT_BROKER),
        ):
            # Coarser units are read-only, so only the finest name can stand in the metadata log.
            if key.synonyms and key.synonyms[0] in layer:
                return layer[key.synonyms[0]], source
        given = self._config().given
        static = any(synonym in given for synonym in key.synonyms)
        text = key.show(defaults[key.name])
        return text or "", ConfigValueSource.STATIC_BROKER if static else ConfigValueSource.DEFAULT


def _check_remote_topic(values: Mapping[str, Value]) -> None:
    """Check the settings of a topic with remote storage against each other, as Kafka does."""
    policy = values["cleanup.policy"]
    if isinstance(policy, tuple) and "compact" in policy:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an "
            "empty list.",
        )
    for unit in ("bytes", "ms"):
        whole, local = values[f"retention.{unit}"], values[f"local.retention.{unit}"]
        assert isinstance(whole, int)
        assert isinstance(local, int)
        if local == _AS_RETENTION:
            continue
        name = f"local.retention.{unit}"
        if whole >= 0 and local == -1:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value -1 for configuration {name}: Value must not be -1 as retention.{unit} value "
                f"is set as {whole}.",
            )
        if whole >= 0 and local > whole:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value {local} for configuration {name}: Value must not be more than "
                f"retention.{unit} property value: {whole}",
            )
        if values["remote.log.copy.disable"] is True and local != whole:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"When `remote.log.copy.disable` is set to true, the `{name}` and `retention.{unit}` must be "
                "set to the identical value because there will be no more logs copied to the remote storage.",
            )


def _parse(keys: Mapping[str, ConfigKey], kind: str, configs: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, text in configs.items():
        key = keys.get(name)
        if key is None:
            if keys is CLIENT_METRICS:
                raise _invalid(f"Unknown client metrics configuration: {name}")
            # For our own settings: what Apache Kafka says of a wrong name stays as it is.
            meant = _nearest(name, tuple(keys)) if name.startswith("table.") else None
            hint = "" if meant is None else f"; did you mean {meant}?"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {kind} config name: {name}{hint}")
        try:
            values[name] = key.parse(text)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return values


@lru_cache(maxsize=64)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that a client may have meant. A name that is too long for one is not compared, and many
    topics with the same mistake in one request cost one comparison.
    """
    if len(name) > _MAX_COMPARED:
        return None
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.7)), None)


def _check_client_metrics(subscription: str, values: Mapping[str, Value]) -> None:
    if not subscription:
        raise _invalid("Subscription name can't be empty")
    interval = values.get("interval.ms")
    low, high = MIN_CLIENT_METRICS_INTERVAL_MS, MAX_CLIENT_METRICS_INTERVAL_MS
    if isinstance(interval, int) and not low <= interval <= high:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between {low} and {high} (1 hour)",
        )
    matches = values.get("match")
    parse_matching_patterns(matches if isinstance(matches, tuple) else ())


def check_broker_settings(config: NodeConfig, settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Raise INVALID_REQUEST, as Kafka does, unless the broker could apply these settings while it runs."""
    fixed = [
        name
        for name in settings
        if (key := broker_key(name)) is not None and key.mode is UpdateMode.READ_ONLY
    ]
    if fixed:
        raise _invalid(f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}")
    unprefixed = [
        name
        for name in settings
        if (key := broker_key(name)) is not None
        and name.startswith("ssl.")
        and name == listener_base_name(name)
        and key.mode is UpdateMode.PER_BROKER
    ]
    if unprefixed:
        raise _invalid(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{', '.join(sorted(unprefixed))}; set listener.name.NAME.SETTING"
        )
    if not per_broker:
        single = [
            name
            for name in settings
            if (key := broker_key(name)) is not None and key.mode is UpdateMode.PER_BROKER
        ]
        if single:
            raise _invalid(
                f"Cannot update these configs at default cluster level: {', '.join(sorted(single))}"
            )
    try:
        for name, text in settings.items():
            key = broker_key(name)
            if key is not None:
                _check_change(config, name, key.parse(text))
        default, broker = config.dynamic_default, config.dynamic_broker
        if per_broker:
            NodeConfig(config.given, dynamic_default=default, dynamic_broker=settings)
        else:
            NodeConfig(config.given, dynamic_default=settings, dynamic_broker=broker)
    except ConfigError as error:
        raise _invalid(str(error)) from None


def _check_change(config: NodeConfig, name: str, value: Value) -> None:
    """Numbers of threads may at most double, or halve, in one step."""
    if name not in _THREADS or config[name] == value:
        return
    current = config.number(name)
    assert isinstance(value, int)
    failed = f"Dynamic thread count update validation failed for {name}={value}"
    if value < 1:
        raise _invalid(f"{failed}, value should be at least 1")
    if value > current * 2:
        raise _invalid(f"{failed}, value should not be greater than double the current value {current}")
    if value < current / 2:
        raise _invalid(f"{failed}, value should be at least half the current value {current}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def log_config(config: NodeConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Give the settings of a topic's logs: its own over those of the broker.

    An override that cannot be read is left out; it was checked when it was set.
    """
    values = config.topic_defaults()
    for name, text in overrides.items():
        key = TOPIC.get(name)
        if key is not None:
            try:
                values[name] = key.parse(text)
            except ConfigError:
                continue
    for name in (DEAD_LETTER_ENABLE, *TABLE_SETTINGS):
        del values[name]  # those of its table and of share groups, which no log has
    internal = values.pop("internal.segment.bytes")
    fields: dict[str, object] = {field_name(name): value for name, value in values.items()}
    if internal is not None:
        fields["segment_bytes"] = internal
    policy = values["cleanup.policy"]
    assert isinstance(policy, tuple)
    fields["cleanup_policy"] = frozenset(policy)
    fields["message_timestamp_type"] = (
        TimestampType.LOG_APPEND_TIME
        if values["message.timestamp.type"] == "LogAppendTime"
        else TimestampType.CREATE_TIME
    )
    return LogConfig(**fields)  # type: ignore[arg-type]
