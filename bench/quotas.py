"""A noisy client and a quiet one, beside Apache Kafka 4.3.1: what quotas keep for the quiet one.

The quiet client produces one record at a time and waits for each. The noisy one produces as much as it can,
by another client id, which then has a quota of a megabyte per second.
"""

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from bench.brokers import PEER, Broker
from bench.harness import Row, markdown, scaled
from bench.loads import create
from bench.versus import Pair, both
from ottla import blocking

REQUESTS = scaled(1_000, 300)
ROUNDS = scaled(5, 3)
NOISY_BYTES = 10_000
QUOTA = 1_000_000
# After this long a noisy client has used up what its quota gives at once.
SETTLED_S = 3.0


def make_noise(bootstrap: str) -> None:
    """Produce without end."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "noisy",
            "queue.buffering.max.messages": 2_000,
            "linger.ms": 5,
            "log_level": 2,
        }
    )
    value = bytes(NOISY_BYTES)
    while True:
        try:
            producer.produce("noise", value)
        except BufferError:
            producer.poll(0.01)


@contextlib.contextmanager
def noise(broker: Broker) -> Iterator[None]:
    """A noisy client, in a process of its own: it must not take the interpreter of the quiet one."""
    process = multiprocessing.get_context("spawn").Process(
        target=make_noise, args=(broker.bootstrap,), daemon=True
    )
    process.start()
    try:
        time.sleep(SETTLED_S)
        yield
    finally:
        process.kill()
        process.join()


class Quiet:
    """The quiet client: its speed in each round, and how long 99 of 100 of its requests took at most."""

    def __init__(self, broker: Broker, *, beside_noise: bool) -> None:
        self._broker = broker
        self._beside_noise = beside_noise
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "client.id": "quiet", "linger.ms": 0}
        )
        self.p99_ms: list[float] = []

    def __call__(self) -> float:
        with noise(self._broker) if self._beside_noise else contextlib.nullcontext():
            times = []
            for _ in range(REQUESTS):
                begin = time.perf_counter()
                self._producer.produce("quiet", b"x" * 100)
                self._producer.flush()
                times.append(time.perf_counter() - begin)
        self.p99_ms.append(sorted(times)[len(times) * 99 // 100] * 1e3)
        return REQUESTS / sum(times)


def set_quotas(broker: Broker) -> None:
    """Each client has quotas; only that of the noisy one is small."""
    with blocking.Admin(broker.bootstrap) as admin:
        admin.quotas.alter({"client-id": "noisy"}, set={"producer_byte_rate": QUOTA})
        much = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
        admin.quotas.alter({"client-id": None}, set=much)


def quiet_rows(pair: Pair, name: str, *, beside_noise: bool, aim: str = "") -> Iterator[Row]:
    clients: list[Quiet] = []

    def load(broker: Broker) -> Quiet:
        clients.append(Quiet(broker, beside_noise=beside_noise))
        return clients[-1]

    mine, *others = pair.measure(load, REQUESTS, ROUNDS)
    for client in clients:
        del client.p99_ms[0]  # of the warm-up
    p99 = [statistics.median(client.p99_ms) for client in clients]
    if not others:
        yield Row(name, "requests/s", mine.speed(), None, "–", None, None, None, aim)
        yield Row(f"{name}: p99", "ms", p99[0], None, "–", None, None, None, "")
        return
    (theirs,) = others
    ratios = sorted(a / b for a, b in zip(mine.speeds, theirs.speeds, strict=True))
    middle = statistics.median(ratios)
    yield Row(name, "requests/s", mine.speed(), theirs.speed(), PEER, middle, ratios[0], ratios[-1], aim)
    slower = sorted(b / a for a, b in zip(clients[0].p99_ms, clients[1].p99_ms, strict=True))
    middle = statistics.median(slower)
    yield Row(f"{name}: p99", "ms", p99[0], p99[1], PEER, middle, slower[0], slower[-1], "")


def rows() -> Iterator[Row]:
    with both() as pair:
        for topic in ("noise", "quiet"):
            pair.each(lambda broker: create(broker, topic, retention_bytes="100000000"))  # noqa: B023
        yield from quiet_rows(pair, "a quiet client alone", beside_noise=False, aim="≥ 1")
        yield from quiet_rows(pair, "… beside a noisy one", beside_noise=True)
        pair.each(set_quotas)
        name = "… beside a noisy one with a quota of 1 MB/s"
        yield from quiet_rows(pair, name, beside_noise=True, aim="≥ 1")
        yield from quiet_rows(pair, "alone, with quotas", beside_noise=False, aim="≥ 1")


if __name__ == "__main__":
    print(markdown(list(rows())))
