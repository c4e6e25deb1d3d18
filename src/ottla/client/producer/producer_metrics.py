"""What a producer counts, once for each batch or request, under Kafka's names."""

from __future__ import annotations

from typing import Final

from ottla.client.metrics import ClientMetrics
from ottla.client.producer.record_accumulator import RecordAccumulator


class ProducerMetrics:
    """The sensors of one producer; they are read by its `ClientMetrics`."""

    __slots__ = (
        "batch_size",
        "produce_throttle_time",
        "record_errors",
        "record_queue_time",
        "record_retries",
        "record_sends",
        "records_per_request",
        "request_latency",
    )

    def __init__(self, metrics: ClientMetrics, accumulator: RecordAccumulator, buffer_memory: int) -> None:
        self.record_sends: Final = metrics.total("record-send")
        self.record_retries: Final = metrics.total("record-retry")
        self.record_errors: Final = metrics.total("record-error")
        self.records_per_request: Final = metrics.average_and_max("records-per-request")
        self.batch_size: Final = metrics.average_and_max("batch-size")
        self.record_queue_time: Final = metrics.average_and_max("record-queue-time")
        self.request_latency: Final = metrics.average_and_max("request-latency")
        self.produce_throttle_time: Final = metrics.average_and_max("produce-throttle-time")
        metrics.gauge("buffer-total-bytes", lambda: buffer_memory)
        metrics.gauge("buffer-available-bytes", lambda: max(buffer_memory - accumulator.used_bytes, 0))
