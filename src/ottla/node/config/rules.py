"""Settings that are fine alone but must also fit each other, as Kafka checks them at start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.config.errors import ConfigError

if TYPE_CHECKING:
    from ottla.node.config.node_config import NodeConfig

# (smaller, larger): the first must not be above the second.
_NOT_ABOVE: Final = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.share.min.delivery.count.limit", "group.share.delivery.count.limit"),
    ("group.share.delivery.count.limit", "group.share.max.delivery.count.limit"),
    ("group.share.min.record.lock.duration.ms", "group.share.record.lock.duration.ms"),
    ("group.share.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"),
    ("group.share.min.partition.max.record.locks", "group.share.partition.max.record.locks"),
    ("group.share.partition.max.record.locks", "group.share.max.partition.max.record.locks"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
    *(
        pair
        for kind in ("consumer", "share", "streams")
        for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
        for pair in (
            (f"group.{kind}.min.{what}", f"group.{kind}.{what}"),
            (f"group.{kind}.{what}", f"group.{kind}.max.{what}"),
        )
    ),
)
_BELOW: Final = (
    ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
    *(
        (f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms")
        for kind in ("consumer", "share", "streams")
    ),
)
_MIN_DEDUPE_BYTES_PER_THREAD: Final = 1024 * 1024
_REPLICA_SELECTORS: Final = ("LeaderSelector", "RackAwareReplicaSelector")


def check_rules(config: NodeConfig) -> None:
    """ConfigError for the first pair of settings that contradict each other."""
    for small, large in _NOT_ABOVE:
        if config.number(small) > config.number(large):
            raise ConfigError(
                f"{small} is {config[small]} and must not be above {large}, which is {config[large]}"
            )
    for small, large in _BELOW:
        if config.number(small) >= config.number(large):
            raise ConfigError(
                f"{small} is {config[small]} and must be below {large}, which is {config[large]}"
            )
    _check_log(config)
    _check_limits(config)
    _check_identity(config)
    _check_listeners(config)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ConfigError(problem)


def _check_log(config: NodeConfig) -> None:
    roll, jitter, retention = (
        config.first_set(name) for name in ("log.roll.ms", "log.roll.jitter.ms", "log.retention.ms")
    )
    _require(roll >= 1, f"log.roll.ms is {roll} and must be at least 1")
    _require(jitter >= 0, f"log.roll.jitter.ms is {jitter} and must be at least 0")
    _require(
        retention == -1 or retention >= 1, f"log.retention.ms is {retention}; allowed are -1 and 1 or more"
    )
    _require(all(config.log_dirs), "log.dirs names a directory without a name")
    threads = config.number("log.cleaner.threads")
    if threads:
        dedupe = config.number("log.cleaner.dedupe.buffer.size")
        _require(
            dedupe // threads > _MIN_DEDUPE_BYTES_PER_THREAD,
            f"log.cleaner.dedupe.buffer.size is {dedupe} and must be above {_MIN_DEDUPE_BYTES_PER_THREAD} "
            f"for each of the {threads} cleaner threads",
        )


def _check_limits(config: NodeConfig) -> None:
    queued, largest = config.number("queued.max.request.bytes"), config.number("socket.request.max.bytes")
    _require(
        queued <= 0 or queued >= largest,
        f"queued.max.request.bytes is {queued} and must not be below socket.request.max.bytes, "
        f"which is {largest}",
    )
    _require(
        config.number("max.connections.per.ip") > 0 or bool(config.text("max.connections.per.ip.overrides")),
        "max.connections.per.ip is 0, which lets nobody in: set max.connections.per.ip.overrides as well",
    )
    parse_ip_overrides(config.text("max.connections.per.ip.overrides"))


def parse_ip_overrides(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`, by host."""
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = entry.rpartition(":")
        if not host or not count.isdigit():
            raise ConfigError(
                f"max.connections.per.ip.overrides: {entry} cannot be used: expected host:count"
            )
        overrides[host] = int(count)
    return overrides


def voter_ids(config: NodeConfig) -> set[int]:
    """The voters of a static quorum, by `controller.quorum.voters`."""
    return {int(voter.partition("@")[0]) for voter in config.names("controller.quorum.voters")}


def _check_identity(config: NodeConfig) -> None:
    broker_id = config.number("broker.id")
    _require(
        broker_id in (-1, config.node_id),
        f"broker.id is {broker_id} and node.id is {config.node_id}: they must agree, or leave broker.id out",
    )
    voters = voter_ids(config)
    if voters:
        _require(
            (config.node_id in voters) == config.is_controller,
            f"node.id {config.node_id} must stand in controller.quorum.voters if, and only if, process.roles "
            "has controller",
        )


def _check_listeners(config: NodeConfig) -> None:
    names = {endpoint.name for endpoint in config.listeners}
    controller = set(config.controller_listener_names)
    if config.is_controller and not config.alone:
        _require(
            bool(names & controller),
            f"controller.listener.names {','.join(sorted(controller))}: none of them stands in listeners",
        )
    if not config.is_broker:
        return
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    where = "listeners" if config["advertised.listeners"] is None else "advertised.listeners"
    _require(
        bool(advertised), f"{where} has none for clients: all of them stand in controller.listener.names"
    )
    unknown = (advertised | {endpoint.name for endpoint in config.advertised_of_controller}) - names
    _require(
        not unknown,
        f"advertised.listeners names {','.join(sorted(unknown))}, which listeners does not have",
    )
    if config["advertised.listeners"] is not None:
        listening = set(config.listeners_of_controller)
        for endpoint in (
            *config.advertised_listeners,
            *(each for each in config.advertised_of_controller if each not in listening),
        ):
            _require(
                not endpoint.wildcard,
                f"advertised.listeners has {endpoint}, which no client can connect to: "
                "give a host name or address",
            )
    selector = config["replica.selector.class"]
    _require(
        selector is None or str(selector).rpartition(".")[2] in _REPLICA_SELECTORS,
        f"replica.selector.class is {selector}; there are {' and '.join(_REPLICA_SELECTORS)}",
    )
    inter_broker = config["inter.broker.listener.name"]
    if inter_broker is not None:
        _require(
            "security.inter.broker.protocol" not in config.given,
            "set inter.broker.listener.name or security.inter.broker.protocol, not both",
        )
        _require(
            str(inter_broker).upper() in advertised,
            f"inter.broker.listener.name is {inter_broker}, which is not an advertised listener; "
            f"there are {','.join(sorted(advertised))}",
        )
