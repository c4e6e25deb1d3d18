"""Many partitions: start time, memory and cost of a record with 1 to 10,000 of them."""

import time
from collections.abc import Iterator

from bench import batches, loads
from bench.brokers import PEER, Broker
from bench.harness import Row, fewer, scaled, show
from bench.plots import Plot, plot
from bench.versus import Pair, both

COUNTS = (1, 100, 1_000, 10_000)


def warmed(broker: Broker, topic: str, partitions: int, requests: int) -> loads.Load:
    """Write to every partition before anything is measured."""
    deadline = time.monotonic() + 300
    while True:
        try:
            batches.sending(broker, topic, partitions, partitions)()
            break
        except batches.Refused:  # Apache Kafka tells of a topic before all of its replicas are there
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    return batches.sending(broker, topic, partitions, requests)


def restarted(broker: Broker) -> tuple[float, float]:
    broker.stop()
    broker.start()
    return broker.ready_s, broker.resident_megabytes()


def of(pair: Pair, partitions: int, costs: dict[str, list[tuple[float, float]]]) -> Iterator[Row]:
    topic = f"scale-{partitions}"
    shown = f"{partitions:,} partition{'s' if partitions > 1 else ''}"
    pair.each(lambda broker: loads.create(broker, topic, partitions))
    requests = scaled(10_000, 3_000)
    amount = requests * batches.RECORDS_A_BATCH
    found = list(
        pair.rows(
            f"produce to {shown}",
            lambda broker: warmed(broker, topic, partitions, requests),
            amount,
            scaled(5, 3),
        )
    )
    yield from found
    for broker, cost in (("Ottla", found[1].ours), ("Apache Kafka", found[1].peer)):
        if cost is not None:
            costs.setdefault(broker, []).append((partitions, cost))
    if partitions >= 1_000:
        mine = restarted(pair.mine)
        theirs = (None, None) if pair.theirs is None else restarted(pair.theirs)
        yield fewer(f"start to ready with {shown}", "s", mine[0], theirs[0], PEER, "≥ 4")
        yield fewer(f"resident memory with {shown}", "MB", mine[1], theirs[1], PEER, "≥ 4")
    pair.each(lambda broker: loads.delete(broker, topic))


def rows() -> Iterator[Row]:
    costs: dict[str, list[tuple[float, float]]] = {}
    with both() as pair:
        for partitions in COUNTS:
            yield from of(pair, partitions, costs)
    flat = {broker: dict(points) for broker, points in costs.items()}["Ottla"]
    yield Row(
        "cost of a record, 1,000 partitions to 1", "times", flat[1_000] / flat[1],
        None, "–", None, None, None, "≤ 1.2",
    )  # fmt: skip
    plot(
        Plot(
            "partitions",
            "Broker CPU by number of partitions",
            "partitions",
            "seconds per million records",
            costs,
            log_x=True,
        )
    )


if __name__ == "__main__":
    show(rows())
