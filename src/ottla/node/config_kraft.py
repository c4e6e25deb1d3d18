"""The node's place in its cluster, and the quorum that keeps the cluster's metadata."""

from __future__ import annotations

from typing import Final

from ottla.node.config_types import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    ConfigKey,
    ListOf,
    Matches,
    Range,
    key,
    table,
)

SERVERS: Final = Matches(r"[^\s:]*:[0-9]+|\[[^\]]*\]:[0-9]+", "host:port pairs")
VOTERS: Final = Matches(r"[0-9]+@([^\s:]*|\[[^\]]*\]):[0-9]+", "id@host:port entries")

# fmt: off
KRAFT: Final[dict[str, ConfigKey]] = table(
    key("process.roles", LIST, ("broker", "controller"), HIGH,
        "What this node is: broker, controller, or both.", ListOf(("broker", "controller"), empty=False)),
    key("node.id", INT, 1, HIGH,
        "The node's number in the cluster, kept in its data directories.", Range(0)),
    key("broker.id", INT, -1, HIGH,
        "An older name of node.id; the two must agree where both are set."),
    key("broker.rack", STRING, None, MEDIUM,
        "The rack or zone the broker stands in; replicas are spread over racks and consumers read from "
        "the nearest."),
    key("broker.heartbeat.interval.ms", INT, 2000, MEDIUM,
        "How often a broker tells the controller that it lives."),
    key("broker.session.timeout.ms", INT, 9000, MEDIUM,
        "A broker that the controller has not heard from for this long is fenced."),
    key("initial.broker.registration.timeout.ms", INT, 60_000, MEDIUM,
        "How long a starting broker tries to register before it gives up."),
    key("controller.listener.names", LIST, ("CONTROLLER",), HIGH,
        "Names of the listeners that the controllers use. The first is the one brokers connect to.",
        ListOf(empty=False)),
    key("controller.quorum.voters", LIST, (), HIGH,
        "The voters of a static quorum, as id@host:port, comma separated.", VOTERS),
    key("controller.quorum.bootstrap.servers", LIST, (), HIGH,
        "Addresses by which the quorum is found when voters are managed in the metadata log.", SERVERS),
    key("controller.quorum.auto.join.enable", BOOLEAN, False, LOW,
        "Whether a controller adds itself to the voters when it starts."),
    key("controller.quorum.election.timeout.ms", INT, 1000, HIGH,
        "How long a candidate waits for votes before it starts another election.", Range(0)),
    key("controller.quorum.election.backoff.max.ms", INT, 1000, HIGH,
        "The most that a candidate rests before it starts another election.", Range(0)),
    key("controller.quorum.fetch.timeout.ms", INT, 2000, HIGH,
        "How long a voter lets pass without word from the leader before it starts an election.", Range(0)),
    key("controller.quorum.fetch.max.bytes", INT, 1_048_576, LOW,
        "How much of the metadata log one fetch asks for.", Range(1)),
    key("controller.quorum.fetch.snapshot.max.bytes", INT, 1_048_576, LOW,
        "How much of a metadata snapshot one fetch asks for.", Range(1)),
    key("controller.quorum.append.linger.ms", INT, 25, MEDIUM,
        "How long the leader of the quorum gathers appends before it writes them out.", Range(0)),
    key("controller.quorum.request.timeout.ms", INT, 2000, MEDIUM,
        "How long a node of the quorum waits for an answer of another.", Range(0)),
    key("controller.quorum.retry.backoff.ms", INT, 20, LOW,
        "How long a node of the quorum rests before it repeats a failed request.", Range(0)),
    key("controller.performance.sample.period.ms", LONG, 60_000, MEDIUM,
        "How often the controller reports how long its events take.", Range(100), internal=True),
    key("controller.performance.always.log.threshold.ms", LONG, 2000, MEDIUM,
        "A controller event that takes longer than this is always logged.", Range(0), internal=True),
    key("metadata.log.dir", STRING, None, HIGH,
        "The directory of the metadata log; the first data directory when unset."),
    key("metadata.log.segment.bytes", INT, 1_073_741_824, HIGH,
        "The size at which a segment of the metadata log is closed.", Range(8_388_608)),
    key("metadata.log.segment.ms", LONG, 604_800_000, HIGH,
        "The age at which a segment of the metadata log is closed."),
    key("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, HIGH,
        "How many bytes of metadata records are written before a snapshot is made.", Range(1)),
    key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, HIGH,
        "How long the node waits at most before it makes a snapshot of new metadata; 0 turns snapshots by "
        "time off.", Range(0)),
    key("metadata.max.retention.bytes", LONG, 104_857_600, HIGH,
        "How large the metadata log and its snapshots may grow before the oldest are deleted."),
    key("metadata.max.retention.ms", LONG, 604_800_000, HIGH,
        "How long the metadata log and its snapshots are kept."),
    key("metadata.max.idle.interval.ms", INT, 500, LOW,
        "How often the leader of the quorum writes a no-op record, so that offsets move while nothing "
        "happens; 0 turns it off.", Range(0)),
    key("internal.metadata.log.segment.bytes", INT, None, LOW,
        "As metadata.log.segment.bytes without its lower bound. For tests.", internal=True),
    key("internal.metadata.max.batch.size.in.bytes", INT, 8_388_608, LOW,
        "The largest batch of metadata records. For tests.", internal=True),
    key("internal.metadata.delete.delay.millis", LONG, 60_000, LOW,
        "How long deleted files of the metadata log stay on disk. For tests.", internal=True),
)
# fmt: on
