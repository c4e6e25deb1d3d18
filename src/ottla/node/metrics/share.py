"""The share partitions that this broker leads, and the share sessions of their members.

At most `metrics.max.group.partitions` share partitions have series of their own; all beyond are one sum,
`_other`. A broker that has led none yet has no series of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.runtime.metrics import OTHER, MetricKind, MetricsText, label_text
from ottla.runtime.on_demand import OnDemand
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.node.share.share_partition_manager import SharePartitionManager

_PARTITION: Final = "kafka_server_sharepartitionmetrics_"
_SESSIONS: Final = "kafka_server_sharesessioncache_"
_LABELS: Final = ("group", "topic", "partition")


class ShareCollector:
    def __init__(self, share: OnDemand[SharePartitionManager], config: DynamicBrokerConfig) -> None:
        self._share: Final = share
        self._config: Final = config

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        shares = self._share.made
        if shares is None:
            return
        left = self._config.current.number("metrics.max.group.partitions")
        gauge = MetricKind.GAUGE
        helps = {
            "inflightmessagecount": "Records of the share partition that are in delivery",
            "inflightbatchcount": "Batches of the share partition that are in delivery",
            "acquiredmessagecount": "Records of the share partition that members hold",
        }
        names = tuple(helps)
        families = [text.family(_PARTITION + name, help, gauge) for name, help in helps.items()]
        other = [0, 0, 0]
        beyond = False
        for leader in shares:
            share = leader.share
            if share is None:
                continue
            values = (share.in_flight_records, share.in_flight_batches, share.acquired_records)
            if left > 0:
                left -= 1
                topic, partition = leader.partition.topic_partition
                labels = label_text(_LABELS, (leader.key.group_id, topic, str(partition)))
                for name, lines, value in zip(names, families, values, strict=True):
                    lines.append(f"{_PARTITION}{name}{labels} {value}")
            else:
                beyond = True
                other = [sum(pair) for pair in zip(other, values, strict=True)]
            if turns.is_due():
                await turns.pause()
        if beyond:
            labels = label_text(_LABELS, (OTHER, OTHER, OTHER))
            for name, lines, value in zip(names, families, other, strict=True):
                lines.append(f"{_PARTITION}{name}{labels} {value}")
        text.counter(
            f"{_PARTITION}acquisitionlocktimeouts_total",
            "Records whose acquisition lock has expired",
            shares.counts.expired,
        )
        text.counter(
            "ottla_share_records_acquired_total",
            "Records that members have acquired, with each delivery of a record",
            shares.acquired,
        )
        text.counter(
            "ottla_share_records_archived_total",
            "Records that were delivered share.delivery.count.limit times and not accepted",
            shares.counts.archived,
        )
        text.counter(
            "kafka_server_sharegroupmetrics_recordacknowledgements_total",
            "Records that members have acknowledged",
            [((type.name.capitalize(),), count) for type, count in shares.acknowledged.items()],
            ("ackType",),
        )
        text.counter(
            "ottla_share_partition_loads_total", "Loads of the state of share partitions", shares.loads
        )
        text.counter(
            "ottla_share_partition_load_seconds_total",
            "How long loads of the state of share partitions took",
            shares.load_ns / 1e9,
        )
        text.gauge(f"{_SESSIONS}sharesessionscount", "Share sessions", len(shares.sessions))
        text.gauge(
            f"{_SESSIONS}sharepartitionscount",
            "Partitions of share sessions",
            shares.sessions.partitions,
        )
        text.counter(
            f"{_SESSIONS}sharesessionevictions_total",
            "Share sessions that ended with their connection",
            shares.sessions.evictions,
        )
