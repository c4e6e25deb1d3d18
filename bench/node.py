"""A node beside Apache Kafka 4.3.1, by the same clients in one run: start, memory, throughput, cost."""

from collections.abc import Iterator

from bench import loads
from bench.brokers import PEER, Broker
from bench.harness import Row, fewer, scaled, show
from bench.plots import Plot, plot
from bench.versus import Pair, both

SIZES = {100: (2_000_000, 500_000), 1_000: (400_000, 100_000), 10_000: (40_000, 10_000)}
PRODUCE_AIM = "≥ 1.5"
CONSUME_AIM = "≥ 1.2"


def shown(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size // 1000} kB"


def memory(pair: Pair, when: str) -> Row:
    theirs = None if pair.theirs is None else pair.theirs.resident_megabytes()
    return fewer(f"resident memory, {when}", "MB", pair.mine.resident_megabytes(), theirs, PEER, "≥ 8")


def sizes(pair: Pair, rounds: int) -> Iterator[Row]:
    """Produce records of several sizes to one partition with both clients; the topics stay for consumers."""
    speeds: dict[str, list[tuple[float, float]]] = {}
    for size, (full, short) in SIZES.items():
        count = scaled(full, short)
        topic = f"size-{size}"
        aim = PRODUCE_AIM if size <= 1000 else "≥ 1"
        for client, producing, consuming in (
            ("librdkafka", loads.producing, lambda b, t, n: loads.consuming(b, t, 1, n)),
            ("Java", loads.java_producing, loads.java_consuming),
        )[: 1 if pair.theirs is None else 2]:  # the Java tools come with Apache Kafka
            pair.each(lambda broker: loads.create(broker, topic))  # noqa: B023

            def produce(broker: Broker) -> loads.Load:
                return producing(broker, topic, size, count)  # noqa: B023

            def consume(broker: Broker) -> loads.Load:
                return consuming(broker, topic, count)  # noqa: B023

            for way, load, wanted in (("produce", produce, aim), ("consume", consume, CONSUME_AIM)):
                found = list(pair.rows(f"{way} {shown(size)}, {client}", load, count, rounds, aim=wanted))
                yield from found
                speed = found[0]
                for broker, value in (("Ottla", speed.ours), ("Apache Kafka", speed.peer)):
                    if value is not None:
                        megabytes = value * size / 1e6
                        speeds.setdefault(f"{way}, {client}: {broker}", []).append((size, megabytes))
            pair.each(lambda broker: loads.delete(broker, topic))  # noqa: B023
    plot(
        Plot(
            "throughput",
            "Throughput by record size",
            "bytes a record",
            "MB/s",
            speeds,
            log_x=True,
            log_y=True,
        )
    )


def variants(pair: Pair, rounds: int) -> Iterator[Row]:
    """100-byte records: compressed, over several partitions, acknowledged by the leader alone."""
    count = scaled(1_000_000, 300_000)
    topic = "variant"
    for name, partitions, settings in (
        ("lz4", 1, {"compression_type": "lz4"}),
        ("zstd", 1, {"compression_type": "zstd"}),
        ("12 partitions", 12, {}),
        ("acks=1", 1, {"acks": "1", "enable_idempotence": "false"}),
    ):
        pair.each(lambda broker: loads.create(broker, topic, partitions))  # noqa: B023

        def produce(broker: Broker) -> loads.Load:
            return loads.producing(broker, topic, 100, count, **settings)  # noqa: B023

        def consume(broker: Broker) -> loads.Load:
            return loads.consuming(broker, topic, partitions, count)  # noqa: B023

        yield from pair.rows(f"produce 100 B, {name}", produce, count, rounds, aim=PRODUCE_AIM)
        if name != "acks=1":
            yield from pair.rows(f"consume 100 B, {name}", consume, count, rounds, aim=CONSUME_AIM)
        if partitions > 1:

            def crowd(broker: Broker) -> loads.Load:
                return loads.consuming(broker, topic, partitions, count, consumers=8)  # noqa: B023

            yield from pair.rows("consume 100 B, 8 consumers", crowd, 8 * count, rounds, aim=CONSUME_AIM)
        pair.each(lambda broker: loads.delete(broker, topic))


def rows() -> Iterator[Row]:
    rounds = scaled(5, 3)
    with both() as pair:
        theirs = None if pair.theirs is None else pair.theirs.ready_s
        yield fewer("start to ready", "s", pair.mine.ready_s, theirs, PEER, "≥ 8")
        yield memory(pair, "idle")
        yield from sizes(pair, rounds)
        yield memory(pair, "under load")
        yield from variants(pair, rounds)
        count = scaled(100_000, 30_000)
        pair.each(lambda broker: loads.create(broker, "requests"))
        yield from pair.rows(
            "small requests, one record each",
            lambda broker: loads.requesting(broker, "requests", count),
            count,
            rounds,
            unit="requests/s",
        )
        yield memory(pair, "after load")


if __name__ == "__main__":
    show(rows())
