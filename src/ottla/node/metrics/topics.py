"""Topics: records and bytes in and out, requests. Kafka's `BrokerTopicMetrics`; as there, the sum of all
topics has no label.

At most `metrics.max.topics` topics have series of their own. A topic takes its place with its first records,
so that idle ones take none, and keeps it until it is deleted. Those that find no place are counted together
as `_other`, and stay there, so that no series ever goes down.
"""

from __future__ import annotations

from typing import Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.replication.topic_statistics import BrokerTopicStatistics, TopicStatistics
from ottla.runtime.metrics import OTHER, MetricKind, MetricsText, label_text
from ottla.runtime.turns import Turns

_PREFIX: Final = "kafka_server_brokertopicmetrics_"
# Names, what they are, and the attributes of `TopicStatistics`.
_BY_TOPIC: Final = (
    ("messagesin_total", "Records that were produced", "messages_in"),
    ("bytesin_total", "Bytes that were produced", "bytes_in"),
    ("bytesout_total", "Bytes that consumers fetched", "bytes_out"),
    ("totalproducerequests_total", "Appends to partitions", "produces"),
    ("failedproducerequests_total", "Appends to partitions that failed", "failed_produces"),
    ("totalfetchrequests_total", "Reads of partitions that gave records", "fetches"),
    (
        "failedfetchrequests_total",
        "Reads of partitions that failed for a reason of the broker's",
        "failed_fetches",
    ),
)
_OF_BROKER: Final = (
    (_PREFIX + "replicationbytesin_total", "Bytes fetched from leaders", "replication_bytes_in"),
    (_PREFIX + "replicationbytesout_total", "Bytes that followers fetched", "replication_bytes_out"),
    ("kafka_server_replicamanager_isrshrinks_total", "In-sync sets that lost a replica", "isr_shrinks"),
    ("kafka_server_replicamanager_isrexpands_total", "In-sync sets that gained a replica", "isr_expands"),
    (
        "kafka_server_replicamanager_failedisrupdates_total",
        "Changes of in-sync sets that the controller refused",
        "failed_isr_updates",
    ),
)


class TopicCollector:
    """Invariant: a topic is in `_named` or in `_others`, not in both, from its first records on."""

    def __init__(self, statistics: BrokerTopicStatistics, config: DynamicBrokerConfig) -> None:
        self._statistics: Final = statistics
        self._config: Final = config
        self._named: Final[dict[str, str]] = {}
        self._others: Final[dict[str, TopicStatistics]] = {}
        # The counts of those of `_others` that were deleted.
        self._other_retired: Final = TopicStatistics()

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        statistics = self._statistics
        await self._name_topics(statistics, turns)
        total, other = TopicStatistics(), TopicStatistics()
        total.add(statistics.retired)
        other.add(self._other_retired)
        lines = [text.family(_PREFIX + name, what, MetricKind.COUNTER) for name, what, _ in _BY_TOPIC]
        series = [
            (at, _PREFIX + name, attribute) for at, (name, _, attribute) in zip(lines, _BY_TOPIC, strict=True)
        ]
        for topic, counts in list(statistics.topics.items()):
            total.add(counts)
            labels = self._named.get(topic)
            if labels is None:
                other.add(counts)
            else:
                for at, name, attribute in series:
                    at.append(f"{name}{labels} {getattr(counts, attribute)}")
            if turns.is_due():
                await turns.pause()
        if self._others or other.produces or other.fetches:
            labels = label_text(("topic",), (OTHER,))
            for at, name, attribute in series:
                at.append(f"{name}{labels} {getattr(other, attribute)}")
        for at, name, attribute in series:
            at.append(f"{name} {getattr(total, attribute)}")
        for name, what, attribute in _OF_BROKER:
            text.counter(name, what, getattr(total, attribute))

    async def _name_topics(self, statistics: BrokerTopicStatistics, turns: Turns) -> None:
        """Give topics that have begun a place, and take it from those that are gone."""
        topics = statistics.topics
        for topic in [topic for topic in self._named if topic not in topics]:
            del self._named[topic]
        for topic in [topic for topic in self._others if topic not in topics]:
            self._other_retired.add(self._others.pop(topic))
        bound = self._config.current.number("metrics.max.topics")
        for topic, counts in list(topics.items()):
            if topic not in self._named and topic not in self._others and _has_begun(counts):
                if len(self._named) < bound:
                    self._named[topic] = label_text(("topic",), (topic,))
                else:
                    self._others[topic] = counts
            if turns.is_due():
                await turns.pause()


def _has_begun(counts: TopicStatistics) -> bool:
    return bool(counts.produces or counts.fetches or counts.failed_produces or counts.failed_fetches)
