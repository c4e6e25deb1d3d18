"""Settings that are fine alone but must also fit each other, as Kafka checks them at the start.

Messages have Kafka's phrase first, as operators search for it, and then the values and our advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.definitions.security import SECURITY
from ottla.node.config.otlp import METRICS, parse_headers, signal_url

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
    ("group.share.max.size", "group.share.max.share.sessions"),
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
_PRINCIPAL_BUILDER: Final = "principal.builder.class"
_DEFAULT_PRINCIPAL_BUILDER: Final = SECURITY[_PRINCIPAL_BUILDER].default
_REPLICA_SELECTORS: Final = ("LeaderSelector", "RackAwareReplicaSelector")


def check_rules(config: NodeConfig) -> None:
    """Raise ConfigError for the first settings that contradict each other."""
    _check_not_of_zookeeper(config)
    for small, large in _NOT_ABOVE:
        if config.number(small) > config.number(large):
            raise ConfigError(
                f"{large} must be greater than or equal to {small}: they are {config[large]} "
                f"and {config[small]}"
            )
    for small, large in _BELOW:
        if config.number(small) >= config.number(large):
            raise ConfigError(
                f"{large} must be greater than {small}: they are {config[large]} and {config[small]}"
            )
    if config.uses_zookeeper:
        _check_zookeeper(config)
    _check_log(config)
    _check_limits(config)
    _check_identity(config)
    _check_listeners(config)
    _check_sasl(config)
    _check_authorizer(config)
    _check_telemetry(config)
    _check_catalog(config)


def _check_not_of_zookeeper(config: NodeConfig) -> None:
    """Refuse the file of a broker that ran on ZooKeeper. Where process.roles is set, zookeeper.connect is
    left over from a migration, and means nothing.
    """
    _require(
        "zookeeper.connect" not in config.given or "process.roles" in config.given or config.uses_zookeeper,
        "Missing required configuration `process.roles` which has no default value: zookeeper.connect is "
        "set, so these are the settings of a Kafka that ran on ZooKeeper, where its topics are. Bring the "
        "cluster over with `ottla zookeeper import`; for a new one, remove zookeeper.connect and choose "
        "empty log.dirs",
    )


def _check_zookeeper(config: NodeConfig) -> None:
    """What the legacy mode needs, and what it cannot do."""
    _require(
        bool(config.text("zookeeper.connect")),
        "metadata.store=zookeeper needs zookeeper.connect: the servers, as host:port,host:port/chroot",
    )
    from ottla.security.zookeeper_login import SCHEMES  # only here: it brings TLS with it

    _require(
        config["zookeeper.login.scheme"] in (None, *SCHEMES),
        f"zookeeper.login.scheme {config['zookeeper.login.scheme']}: allowed are {', '.join(SCHEMES[:-1])} "
        f"and {SCHEMES[-1]}",
    )
    has_login = config["zookeeper.login.scheme"] is not None or config["zookeeper.jaas.file"] is not None
    has_certificate = (
        config.flag("zookeeper.ssl.client.enable") and config["zookeeper.ssl.keystore.location"] is not None
    )
    _require(
        not config.flag("zookeeper.set.acl") or has_login or has_certificate,
        "zookeeper.set.acl is true, but there is no login at ZooKeeper that znodes could belong to: set "
        "zookeeper.login.scheme, zookeeper.login.user and zookeeper.login.password, zookeeper.jaas.file, or "
        "zookeeper.ssl.client.enable=true with zookeeper.ssl.keystore.location",
    )
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        _require(
            not config.names(name),
            f"metadata.store=zookeeper has no quorum, but {name} is set: remove one of the two",
        )
    _require(
        len(config.log_dirs) == 1,
        "metadata.store=zookeeper is for one directory in log.dirs: Kafka's znodes have no place for the "
        f"directories of replicas, and there are {len(config.log_dirs)}",
    )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ConfigError(problem)


def _check_log(config: NodeConfig) -> None:
    roll, jitter, retention = (
        config.first_set(name) for name in ("log.roll.ms", "log.roll.jitter.ms", "log.retention.ms")
    )
    _require(roll >= 1, f"log.roll.ms must be greater than or equal to 1, and is {roll}")
    _require(jitter >= 0, f"log.roll.jitter.ms must be greater than or equal to 0, and is {jitter}")
    _require(
        retention == -1 or retention >= 1,
        f"log.retention.ms must be unlimited (-1) or, greater than or equal to 1, and is {retention}",
    )
    _require(all(config.log_dirs), "log.dirs must not contain empty items")
    threads = config.number("log.cleaner.threads")
    if threads:
        dedupe = config.number("log.cleaner.dedupe.buffer.size")
        _require(
            dedupe // threads > _MIN_DEDUPE_BYTES_PER_THREAD,
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread: it is "
            f"{dedupe} for {threads} threads",
        )


def _check_limits(config: NodeConfig) -> None:
    queued, largest = config.number("queued.max.request.bytes"), config.number("socket.request.max.bytes")
    _require(
        queued <= 0 or queued >= largest,
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes: they are "
        f"{queued} and {largest}",
    )
    _require(
        config.number("max.connections.per.ip") > 0 or bool(config.text("max.connections.per.ip.overrides")),
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set",
    )
    parse_ip_overrides(config.text("max.connections.per.ip.overrides"))


def _check_authorizer(config: NodeConfig) -> None:
    known = {each.name for each in config.listeners} | set(config.controller_listener_names)
    for early in config.names("early.start.listeners"):
        _require(
            early in known,
            f"early.start.listeners contains listener {early}, but this is not contained in listeners or "
            "controller.listener.names",
        )
    _check_principal_builder(config)
    name = config.text("authorizer.class.name")
    if not name:
        return
    from ottla.security.authorizer.standard_authorizer import CLASS_NAME, SUPER_USERS, parse_super_users

    _require(
        name == CLASS_NAME,
        f"Invalid value {name} for configuration authorizer.class.name: there is no such authorizer; "
        f"{CLASS_NAME} is the one that there is",
    )
    try:
        parse_super_users(config.given.get(SUPER_USERS, ""))
    except ValueError as error:
        raise ConfigError(f"Invalid value for configuration {SUPER_USERS}: {error}") from None


def _check_principal_builder(config: NodeConfig) -> None:
    """A class of the operator's would make other users of certificates and logins than this node does, and
    ACLs, also those that deny, are for its users.
    """
    for layer in (config.given, config.dynamic_default, config.dynamic_broker):
        for name, value in layer.items():
            if name == _PRINCIPAL_BUILDER or (
                name.startswith("listener.name.") and name.endswith(f".{_PRINCIPAL_BUILDER}")
            ):
                _require(
                    value == _DEFAULT_PRINCIPAL_BUILDER,
                    f"Invalid value {value} for configuration {name}: there is no such principal builder; "
                    f"{_DEFAULT_PRINCIPAL_BUILDER} is the one that there is (ssl.principal.mapping.rules and "
                    "sasl.kerberos.principal.to.local.rules change the names that it gives)",
                )


def parse_ip_overrides(text: str) -> dict[str, int]:
    """Parse `max.connections.per.ip.overrides`: the limits by host."""
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = entry.rpartition(":")
        if not host or not count.isdigit():
            raise ConfigError(
                f"Invalid value {entry} for configuration max.connections.per.ip.overrides: "
                "expected host:count"
            )
        overrides[host] = int(count)
    return overrides


def voter_ids(config: NodeConfig) -> set[int]:
    """The ids of the voters of a static quorum, by `controller.quorum.voters`."""
    return {int(voter.partition("@")[0]) for voter in config.names("controller.quorum.voters")}


def _check_identity(config: NodeConfig) -> None:
    broker_id = config.number("broker.id")
    _require(
        broker_id in (-1, config.node_id),
        "You must set `node.id` to the same value as `broker.id`: they are "
        f"{config.node_id} and {broker_id}; or leave broker.id out",
    )
    voters = voter_ids(config)
    if not voters:
        return
    shown = ",".join(config.names("controller.quorum.voters"))
    if config.is_controller:
        _require(
            config.node_id in voters,
            f"If process.roles contains the 'controller' role, the node id {config.node_id} must be included "
            f"in the set of voters controller.quorum.voters={shown}",
        )
    else:
        _require(
            config.node_id not in voters,
            f"If process.roles contains just the 'broker' role, the node id {config.node_id} must not be "
            f"included in the set of voters controller.quorum.voters={shown}",
        )


def _check_sasl(config: NodeConfig) -> None:
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    _require(
        config.number(idle) < 0 or config.number(delay) < config.number(idle),
        f"{delay}={config[delay]} should always be less than {idle}={config[idle]} to prevent failed "
        "authentication responses from timing out",
    )
    listener = config.inter_broker_listener
    protocol = config.security_protocols.get(listener)
    if config.is_broker and protocol is not None and protocol.sasl:
        mechanism = config.with_listener_prefix(listener, "sasl.mechanism.inter.broker.protocol")
        enabled = config.with_listener_prefix(listener, "sasl.enabled.mechanisms")
        _require(
            isinstance(enabled, tuple) and mechanism in enabled,
            "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms when SASL is "
            f"used for inter-broker communication: it is {mechanism}",
        )


def _check_listeners(config: NodeConfig) -> None:
    names = {endpoint.name for endpoint in config.listeners}
    controller = set(config.controller_listener_names)
    if config.is_controller and config.uses_zookeeper:
        name = min(controller, default="CONTROLLER")
        _require(
            bool(names & controller),
            "metadata.store=zookeeper needs a listener for the controller, which may be on any of the nodes, "
            f"and listeners has no {name}: set listeners to this one as well, such as "
            f"PLAINTEXT://localhost:9092,{name}://localhost:9093, in the file of settings or with --set; a "
            "new data directory also needs cluster.id. `ottla cluster up --zookeeper` sets all of that",
        )
    if config.is_controller and not config.alone:
        _require(
            bool(names & controller),
            "controller.listener.names must contain at least one value appearing in the 'listeners' "
            "configuration when running the KRaft controller role: it is "
            f"{','.join(sorted(controller))}",
        )
    if not config.is_broker:
        return
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    _require(
        bool(advertised),
        "There must be at least one broker advertised listener. Perhaps all listeners appear in "
        "controller.listener.names?",
    )
    unknown = (advertised | {endpoint.name for endpoint in config.advertised_of_controller}) - names
    _require(
        not unknown,
        "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
        f"Found {','.join(sorted(unknown))}. The valid options based on the current configuration are "
        f"{','.join(sorted(names))}",
    )
    if config["advertised.listeners"] is not None:
        listening = set(config.listeners_of_controller)
        for endpoint in (
            *config.advertised_listeners,
            *(each for each in config.advertised_of_controller if each not in listening),
        ):
            _require(
                not endpoint.wildcard,
                "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP "
                f"address or a host name in {endpoint}",
            )
    selector = config["replica.selector.class"]
    _require(
        selector is None or str(selector).rpartition(".")[2] in _REPLICA_SELECTORS,
        f"Invalid value {selector} for configuration replica.selector.class: String must be one of: "
        f"{', '.join(_REPLICA_SELECTORS)}",
    )
    inter_broker = config["inter.broker.listener.name"]
    if inter_broker is not None:
        _require(
            "security.inter.broker.protocol" not in config.given,
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set",
        )
        _require(
            str(inter_broker).upper() in advertised,
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
            f"options based on currently configured listeners are {','.join(sorted(advertised))}, and it is "
            f"{inter_broker}",
        )


def _check_catalog(config: NodeConfig) -> None:
    """An SQL catalog without an address is a file in the warehouse, which must then be a directory."""
    kind, warehouse = config.text("table.catalog.type"), str(config["table.catalog.warehouse"] or "")
    if not config.is_broker or config.given.get("table.catalog.uri"):
        return
    _require(
        kind != "rest",
        "table.catalog.type=rest needs table.catalog.uri: set it to the address of the catalog, as "
        "https://catalog.example.com",
    )
    _require(
        not warehouse.startswith("file://") or warehouse.startswith("file:///"),
        f"table.catalog.warehouse={warehouse} is no directory: set it to file:///directory, or /directory",
    )
    _require(
        "://" not in warehouse or warehouse.startswith("file://"),
        f"table.catalog.warehouse={warehouse} needs table.catalog.uri: the catalog is a file in the "
        "warehouse only where that is a directory. Set table.catalog.uri to the address of an SQL catalog, "
        "as postgresql+psycopg2://user:password@host/catalog (or sqlite:////directory/catalog.db for one "
        "broker), or table.catalog.type=rest and table.catalog.uri to that of a REST catalog",
    )


def _check_telemetry(config: NodeConfig) -> None:
    endpoint = config.text("telemetry.otlp.endpoint")
    if not endpoint:
        return
    try:
        signal_url(endpoint, METRICS)
    except ValueError as error:
        raise ConfigError(f"telemetry.otlp.endpoint: {error}") from None
    try:
        parse_headers(str(config["telemetry.otlp.headers"] or ""))
    except ValueError as error:
        raise ConfigError(f"telemetry.otlp.headers: {error}") from None
