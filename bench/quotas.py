"""A noisy client and a quiet one, beside Apache Kafka 4.3.1: what quotas keep for the quiet one.

The quiet client produces one record at a time and waits for each. The noisy one produces as much as it can,
by another client id, which then has a quota of a megabyte per second.
"""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Producer

from bench.brokers import PEER, Broker
from bench.harness import Row, markdown, scaled
from bench.loads import Load, create
from bench.versus import Pair, both
from ottla import blocking

REQUESTS = scaled(1_000, 300)
ROUNDS = scaled(5, 3)
NOISY_BYTES = 10_000
QUOTA = 1_000_000
# After this long a noisy client has used up what its quota gives at once.
SETTLED_S = 3.0


@contextlib.contextmanager
def noise(broker: Broker) -> Iterator[None]:
    stopped = threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "noisy",
            "queue.buffering.max.messages": 2_000,
            "linger.ms": 5,
            "log_level": 2,  # its end with records in its queue is no news
        }
    )

    def run() -> None:
        value = bytes(NOISY_BYTES)
        while not stopped.is_set():
            try:
                producer.produce("noise", value)
            except BufferError:
                producer.poll(0.01)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        time.sleep(SETTLED_S)
        yield
    finally:
        stopped.set()
        thread.join()
        producer.purge()
        producer.poll(0)


def quiet(broker: Broker, *, beside_noise: bool) -> Load:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "quiet", "linger.ms": 0})

    def run() -> float:
        with noise(broker) if beside_noise else contextlib.nullcontext():
            begin = time.perf_counter()
            for _ in range(REQUESTS):
                producer.produce("quiet", b"x" * 100)
                producer.flush()
            return REQUESTS / (time.perf_counter() - begin)

    return run


def set_quotas(broker: Broker) -> None:
    """Each client has quotas; only that of the noisy one is small."""
    with blocking.Admin(broker.bootstrap) as admin:
        admin.quotas.alter({"client-id": "noisy"}, set={"producer_byte_rate": QUOTA})
        much = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
        admin.quotas.alter({"client-id": None}, set=much)


def row(pair: Pair, name: str, load: Callable[[Broker], Load], aim: str) -> Row:
    mine, *others = pair.measure(load, REQUESTS, ROUNDS)
    if not others:
        return Row(name, "requests/s", mine.speed(), None, "–", None, None, None, aim)
    (theirs,) = others
    ratios = sorted(a / b for a, b in zip(mine.speeds, theirs.speeds, strict=True))
    middle = statistics.median(ratios)
    return Row(name, "requests/s", mine.speed(), theirs.speed(), PEER, middle, ratios[0], ratios[-1], aim)


def rows() -> Iterator[Row]:
    with both() as pair:
        for topic in ("noise", "quiet"):
            pair.each(lambda broker: create(broker, topic, retention_bytes="100000000"))  # noqa: B023
        yield row(pair, "a quiet client alone", lambda broker: quiet(broker, beside_noise=False), "≥ 1")
        yield row(pair, "… beside a noisy one", lambda broker: quiet(broker, beside_noise=True), "")
        pair.each(set_quotas)
        name = "… beside a noisy one with a quota of 1 MB/s"
        yield row(pair, name, lambda broker: quiet(broker, beside_noise=True), "≥ 1")
        yield row(pair, "alone, with quotas", lambda broker: quiet(broker, beside_noise=False), "≥ 1")


if __name__ == "__main__":
    print(markdown(list(rows())))
