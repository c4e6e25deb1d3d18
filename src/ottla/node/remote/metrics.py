"""Tiered storage: what was copied, deleted and read, and what waits for its copy.

A node without tiered storage has no series of it. Names are those of Kafka's `BrokerTopicMetrics` where Kafka
has the metric; the lag is by topic.
"""

from __future__ import annotations

from typing import Final

from ottla.node.remote.remote_storage import RemoteStorage
from ottla.runtime.metrics import MetricsText
from ottla.runtime.turns import Turns

_TOPICS: Final = "kafka_server_brokertopicmetrics_"


class RemoteStorageCollector:
    def __init__(self, remote: RemoteStorage) -> None:
        self._remote: Final = remote

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        remote = self._remote
        done, store = remote.manager.statistics, remote.storage.statistics
        for name, help, value in (
            ("remotecopybytes", "Bytes of segments that were copied to remote storage", done.copied_bytes),
            (
                "remotecopyrequests",
                "Copies of segments to remote storage that were begun",
                done.copy_requests,
            ),
            ("remotecopyerrors", "Copies of segments to remote storage that failed", done.copy_errors),
            ("remotedeleterequests", "Deletions in remote storage that were begun", done.delete_requests),
            ("remotedeleteerrors", "Deletions in remote storage that failed", done.delete_errors),
        ):
            text.counter(f"{_TOPICS}{name}_total", help, value)
        lag = dict.fromkeys(remote.manager.led_topics, (0, 0))
        for (topic, _), segments, size in remote.manager.lag():
            before = lag.get(topic, (0, 0))
            lag[topic] = before[0] + segments, before[1] + size
            if turns.is_due():
                await turns.pause()
        text.gauge(
            f"{_TOPICS}remotecopylagsegments",
            "Closed segments that are not in remote storage yet",
            [((topic,), segments) for topic, (segments, _) in lag.items()],
            ("topic",),
        )
        text.gauge(
            f"{_TOPICS}remotecopylagbytes",
            "Bytes of closed segments that are not in remote storage yet",
            [((topic,), size) for topic, (_, size) in lag.items()],
            ("topic",),
        )
        text.counter(
            "ottla_remote_copy_throttle_seconds_total",
            "How long copies have waited for remote.log.manager.copy.max.bytes.per.second",
            done.copy_throttled_ms / 1000,
        )
        text.counter("ottla_remote_store_reads_total", "Reads from the object store", store.reads)
        text.counter("ottla_remote_store_read_bytes_total", "Bytes from the object store", store.read_bytes)
        text.counter(
            "ottla_remote_store_timeouts_total",
            "Operations of the object store that made no progress for too long",
            store.timeouts,
        )
        text.gauge(
            "ottla_remote_store_operations",
            "Operations of the object store under way",
            len(store.under_way),
        )
        text.gauge(
            "ottla_remote_store_longest_wait_seconds",
            "How long the object store has not answered the operation that waits longest",
            store.longest_wait_s(),
        )
        text.counter(
            "ottla_remote_store_errors_total", "Operations of the object store that failed", store.errors
        )
