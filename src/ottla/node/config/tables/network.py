"""Listeners, sockets, connections, quotas and metrics of a broker."""

from __future__ import annotations

from typing import Final

from ottla.node.config.tables.config_def import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MAX_INT,
    MAX_LONG,
    MEDIUM,
    PASSWORD,
    PER_BROKER,
    STRING,
    ConfigKey,
    InRange,
    ValidList,
    key,
    table,
)

# fmt: off
NETWORK: Final[dict[str, ConfigKey]] = table(
    key("listeners", LIST, ("PLAINTEXT://127.0.0.1:9092",), HIGH,
        "Where the node listens: NAME://host:port, comma separated. An empty host is the machine's "
        "default address, 0.0.0.0 is every interface.", ValidList(empty=False), mode=PER_BROKER),
    key("advertised.listeners", LIST, None, HIGH,
        "The addresses that clients connect to, by listener name; the listeners themselves "
        "when unset. A listener bound to all interfaces and not advertised is reported as the address the "
        "client came by.", ValidList(empty=False)),
    key("listener.security.protocol.map", STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", LOW,
        "Which security protocol each listener name speaks, as NAME:PROTOCOL pairs. Names of a protocol "
        "stand for themselves.", mode=PER_BROKER),
    key("early.start.listeners", LIST, None, HIGH,
        "Broker listeners opened before the node has finished starting. Listeners of the controller are "
        "always among them.", ValidList()),
    key("inter.broker.listener.name", STRING, None, MEDIUM,
        "The listener over which brokers talk to each other; found by security.inter.broker.protocol when "
        "unset."),
    key("socket.send.buffer.bytes", INT, 102_400, HIGH,
        "SO_SNDBUF of the server's sockets; -1 leaves the operating system's default."),
    key("socket.receive.buffer.bytes", INT, 102_400, HIGH,
        "SO_RCVBUF of the server's sockets; -1 leaves the operating system's default."),
    key("socket.request.max.bytes", INT, 104_857_600, HIGH,
        "The largest request the node reads. A frame that claims more closes its connection before any of "
        "it is read.", InRange(1)),
    key("socket.listen.backlog.size", INT, 50, MEDIUM,
        "How many connections the operating system may hold for a listener before they are accepted.",
        InRange(1)),
    key("max.connections", INT, MAX_INT, MEDIUM,
        "How many connections the node keeps open at once; further ones wait to be accepted. Brokers that "
        "connect to their own listener take the place of the least recently used one of another.",
        InRange(0), mode=CLUSTER_WIDE),
    key("max.connections.per.ip", INT, MAX_INT, MEDIUM,
        "How many connections one client address may have open.", InRange(0), mode=CLUSTER_WIDE),
    key("max.connections.per.ip.overrides", STRING, "", MEDIUM,
        "Exceptions from max.connections.per.ip, as host:count pairs, comma separated.", mode=CLUSTER_WIDE),
    key("max.connection.creation.rate", INT, MAX_INT, MEDIUM,
        "How many connections per second the node accepts; further ones wait to be accepted.",
        InRange(0), mode=CLUSTER_WIDE),
    key("connections.memory.max.bytes", LONG, 536_870_912, MEDIUM,
        "How many bytes all connections together may make the node hold: requests in work and "
        "responses that are not read. A quarter of it is for other nodes. When it is short, requests and "
        "responses wait, and connections on which nothing moves are closed.",
        InRange(1_048_576), mode=CLUSTER_WIDE, internal=True),
    key("http.listener", STRING, "", MEDIUM,
        "Where the node answers HTTP for health, metrics and the console: http://host:port or "
        "https://host:port, with the TLS settings of listener.name.http. Empty for none; `ottla start` "
        "without this setting takes http://127.0.0.1:9644 if it is free.", internal=True),
    key("http.public.paths", LIST, (), MEDIUM,
        "The paths, such as /metrics, that clients on other machines get without a login. Whether the node "
        "is live and ready they always learn.", ValidList(), internal=True),
    key("http.console.enable", BOOLEAN, True, LOW,
        "Whether the console is part of what http.listener answers.", internal=True),
    key("http.console.read.only", BOOLEAN, False, MEDIUM,
        "Whether the console refuses every change of the cluster.", internal=True),
    key("http.console.payloads", BOOLEAN, True, MEDIUM,
        "Whether the console shows what messages hold.", internal=True),
    key("http.console.schemas", STRING, "", LOW,
        "A file that says which schemas the messages of topics have, and where a schema registry is.",
        internal=True),
    key("http.console.pipelines", LIST, (), LOW,
        "The directories of Spark pipelines that the console shows.", ValidList(), internal=True),
    key("connections.max.idle.ms", LONG, 600_000, MEDIUM,
        "A connection on which nothing moved for this long, in either direction, is closed."),
    key("connection.failed.authentication.delay.ms", INT, 100, LOW,
        "How long the answer to a failed authentication is held back, so that a broken client does not "
        "retry in a tight loop.", InRange(0)),
    key("num.network.threads", INT, 3, HIGH,
        "Threads for the network in Apache Kafka. Ottla serves every connection from one event loop and "
        "only reports the value.", InRange(1), mode=CLUSTER_WIDE),
    key("num.io.threads", INT, 8, HIGH,
        "Threads for requests in Apache Kafka. Ottla handles requests on its event loop and only reports "
        "the value.", InRange(1), mode=CLUSTER_WIDE),
    key("background.threads", INT, 10, HIGH,
        "Threads for chores such as deleting old segments: the size of the pool for work that may block.",
        InRange(1), mode=CLUSTER_WIDE),
    key("queued.max.requests", INT, 500, HIGH,
        "How many requests of one connection may be in work before the node stops reading from it.",
        InRange(1)),
    key("queued.max.request.bytes", LONG, -1, MEDIUM,
        "How many bytes of requests may be in memory at once, over all connections; reading stops above "
        "it. -1 sets no limit beside connections.memory.max.bytes."),
    key("request.timeout.ms", INT, 30_000, HIGH,
        "How long the node waits for an answer to a request it sent to another node."),
    key("socket.connection.setup.timeout.ms", LONG, 10_000, MEDIUM,
        "How long the node waits for a connection to another node to be made; grows with each failure."),
    key("socket.connection.setup.timeout.max.ms", LONG, 30_000, MEDIUM,
        "The longest that socket.connection.setup.timeout.ms may grow to."),
    key("quota.window.num", INT, 11, LOW,
        "How many windows are kept to measure client quotas.", InRange(1)),
    key("quota.window.size.seconds", INT, 1, LOW,
        "The length of one window of client quotas, in seconds.", InRange(1)),
    key("replication.quota.window.num", INT, 11, LOW,
        "How many windows are kept to measure replication quotas.", InRange(1)),
    key("replication.quota.window.size.seconds", INT, 1, LOW,
        "The length of one window of replication quotas, in seconds.", InRange(1)),
    key("alter.log.dirs.replication.quota.window.num", INT, 11, LOW,
        "How many windows are kept to measure the copying of replicas between data directories.", InRange(1)),
    key("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, LOW,
        "The length of one window of the quota on copying between data directories, in seconds.", InRange(1)),
    key("controller.quota.window.num", INT, 11, LOW,
        "How many windows are kept to measure quotas on changes of the cluster's metadata.", InRange(1)),
    key("controller.quota.window.size.seconds", INT, 1, LOW,
        "The length of one window of the quotas on metadata changes, in seconds.", InRange(1)),
    key("client.quota.callback.class", CLASS, None, LOW,
        "A Java class that decides quotas in Apache Kafka. Ottla has its own quotas and does not load it."),
    key("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), LOW,
        "Java classes that report metrics in Apache Kafka. Ottla exposes Prometheus metrics instead.",
        ValidList(), mode=CLUSTER_WIDE),
    key("metrics.num.samples", INT, 2, LOW,
        "How many samples a metric is computed over.", InRange(1)),
    key("metrics.recording.level", STRING, "INFO", LOW,
        "The finest level of metrics that is recorded: INFO, DEBUG or TRACE."),
    key("metrics.sample.window.ms", LONG, 30_000, LOW,
        "The time one sample of a metric covers.", InRange(1)),
    key("metrics.enable", BOOLEAN, True, LOW,
        "Whether requests are counted and timed for /metrics. What costs nothing is there without it.",
        internal=True),
    key("metrics.max.topics", INT, 1_000, LOW,
        "How many topics have series of their own in /metrics. Each takes its place with its first records; "
        "those that come later are counted together, as _other.", InRange(0), internal=True),
    key("metrics.max.partitions", INT, 2_000, LOW,
        "How many partitions have series of their own in /metrics. The sizes of the others are shown as one "
        "sum, _other.", InRange(0), internal=True),
    key("metrics.max.group.partitions", INT, 5_000, LOW,
        "How many series by group and partition /metrics has for the lag of groups. Groups beyond it have "
        "only their sums.", InRange(0), internal=True),
    key("kafka.metrics.polling.interval.secs", INT, 10, LOW,
        "How often the Java reporters of kafka.metrics.reporters are polled, in seconds.", InRange(1)),
    key("kafka.metrics.reporters", LIST, (), LOW,
        "Java reporters of Apache Kafka's older metrics. Ottla does not load them.", ValidList()),
    key("telemetry.max.bytes", INT, 1_048_576, LOW,
        "The largest push of client metrics that is accepted, compressed or not.", InRange(1)),
    key("telemetry.max.series", INT, 10_000, LOW,
        "How many series of metrics that clients push are shown at /metrics; more are left out and counted. "
        "Apache Kafka has no such setting.", InRange(0)),
    key("telemetry.otlp.endpoint", STRING, "", LOW,
        "The http or https address of an OpenTelemetry collector, as http://collector:4318: metrics that "
        "clients push are forwarded to it, and traces go there. Empty forwards nothing. Apache Kafka has no "
        "such setting."),
    key("telemetry.otlp.headers", PASSWORD, None, LOW,
        "Headers of the requests to telemetry.otlp.endpoint, as name=value,name=value. "
        "Apache Kafka has no such setting."),
    key("telemetry.traces.enable", BOOLEAN, False, LOW,
        "Whether each request gets an OpenTelemetry span; needs the extra otel. Apache Kafka has no such "
        "setting."),
    key("config.providers", LIST, (), LOW,
        "Names of Java classes that look up settings in Apache Kafka. Ottla does not load them.",
        ValidList(), mode=CLUSTER_WIDE),
    key("create.topic.policy.class.name", CLASS, None, LOW,
        "A Java class that may refuse new topics in Apache Kafka. Ottla does not load it."),
    key("alter.config.policy.class.name", CLASS, None, LOW,
        "A Java class that may refuse configuration changes in Apache Kafka. Ottla does not load it."),
    key("max.request.partition.size.limit", INT, 2000, MEDIUM,
        "The most partitions a single DescribeTopicPartitions answer holds.", InRange(1)),
    key("unstable.api.versions.enable", BOOLEAN, False, HIGH,
        "Announce API versions that are still being worked on. For development only.", internal=True),
    key("unstable.feature.versions.enable", BOOLEAN, False, HIGH,
        "Allow feature levels that are still being worked on. For development only.", internal=True),
    key("server.max.startup.time.ms", LONG, MAX_LONG, MEDIUM,
        "The longest a start may take before the node gives up.", InRange(0), internal=True),
)
# fmt: on
