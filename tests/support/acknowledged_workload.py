"""A producer that writes all the time, through every kill, and records what was acknowledged.

`Load` is a librdkafka producer with idempotence that writes numbered records to every partition of a topic;
afterwards `check` compares what a consumer reads with that: every acknowledged record at its
offset, nothing twice, everything in the order in which it was written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

DEADLINE_SECONDS = 120


class Load:
    """Writes numbered records to every partition until it is stopped, and notes what was acknowledged.

    With `per_second` it writes no more than that. A value is a number and, unless they are `bare`, some dots.
    `settings` are further ones of librdkafka, such as how to log in.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        codec: str = "none",
        per_second: float | None = None,
        bare: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._topic = topic
        self._partitions = partitions
        self._per_second = per_second
        self._bare = bare
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": 2,
                "batch.num.messages": 50,
                # A busy machine, and a broker that is away, keep records waiting: no more of them than are
                # written in some seconds, and none is given up.
                "queue.buffering.max.messages": 10_000,
                "message.timeout.ms": 600_000,
                # Do not wait for a broker that is silent, or that is cut off from the controllers.
                "topic.metadata.refresh.interval.ms": 2_000,
                "request.timeout.ms": 2_500,
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
                **self._settings,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        # Of each partition: the value at each acknowledged offset, and the values written, in order.
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self.written: list[list[bytes]] = [[] for _ in range(partitions)]
        # And the values that were acknowledged without their offset.
        self.somewhere: list[set[bytes]] = [set() for _ in range(partitions)]
        self.failures: list[str] = []
        self.longest_pause_s = 0.0
        """Between two acknowledgements, of whatever partition."""
        self._last_acknowledged: float | None = None

    @property
    def count(self) -> int:
        """How many records were acknowledged."""
        return sum(map(len, self.acknowledged)) + sum(map(len, self.somewhere))

    def _run(self) -> None:
        number = 0
        began = time.monotonic()
        while not self._stop.is_set():
            if self._per_second is not None and number >= (time.monotonic() - began) * self._per_second:
                self._producer.poll(0.01)
                continue
            partition = number % self._partitions
            value = b"%d" % number + (b"" if self._bare else b"." * (number % 300))
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.written[partition].append(value)
            number += 1
            self._producer.poll(0.001 if number % 20 == 0 else 0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error.str())
            return
        now = time.monotonic()
        if self._last_acknowledged is not None:
            self.longest_pause_s = max(self.longest_pause_s, now - self._last_acknowledged)
        self._last_acknowledged = now
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert isinstance(value, bytes)
        if offset is None:
            # Its response was lost, and a later one shows that it was appended: its offset is unknown.
            self.somewhere[partition].add(value)
        else:
            self.acknowledged[partition][offset] = value

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = self.count + count
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.count < wanted:
            assert time.monotonic() < deadline, f"no {count} records in time; failures: {self.failures[:3]}"
            assert self._thread.is_alive()
            time.sleep(0.005)

    def finish(self) -> None:
        """Write no more, and see what was written acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(DEADLINE_SECONDS)
        assert left == 0, f"{left} records are still under way"

    def check(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        """After `finish`: what is in the topic is what was written, once, at the acknowledged offsets.

        The reader has the settings of the writer, unless there are others.
        """
        assert not self.failures, f"{len(self.failures)} records failed: {self.failures[:3]}"
        for partition in range(self._partitions):
            found = read_all(bootstrap, self._topic, partition, settings or self._settings)
            assert list(found) == list(range(len(found)))
            placed = self.acknowledged[partition]
            assert placed.items() <= found.items()
            assert set(found.values()) - set(placed.values()) == self.somewhere[partition]
            assert list(found.values()) == self.written[partition]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def read_all(
    bootstrap: str, topic: str, partition: int, settings: Mapping[str, str] | None = None
) -> dict[int, bytes]:
    """Every record of a partition by its offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "log_level": 0,
            **(settings or {}),
        }
    )
    place = TopicPartition(topic, partition, 0)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            _, end = consumer.get_watermark_offsets(place, DEADLINE_SECONDS)
            break
        except KafkaException as error:
            # A new leader does not know its high watermark before a follower has fetched from it.
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    consumer.assign([place])
    found: dict[int, bytes] = {}
    try:
        while end and (not found or max(found) + 1 < end):
            assert time.monotonic() < deadline, f"{len(found)} of {end} records of {partition} came"
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert isinstance(value, bytes)
                found[offset] = value
    finally:
        consumer.close()
    return found
