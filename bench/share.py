"""Share groups beside Apache Kafka 4.3.1: Java's client, and the broker alone under many members.

The first rows are `KafkaShareConsumer` with its defaults. In the others, members without a client library
fetch ten records at a time, so that the broker has all the work: a thousand members of one partition, and
one member that holds more and more records before it accepts the first of them.
"""

import contextlib
import itertools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from tests.support import java, kafka_libs

from bench import loads
from bench.brokers import PEER, Broker, Ottla
from bench.harness import Row, fewer, scaled, show
from bench.share_members import ShareCrowd
from bench.versus import Measured, Pair, both, without_kafka

PROGRAM = Path(__file__).parent / "java" / "SharePerformance.java"
AIM = "≥ 1.5"
COST_AIM = "≥ 2"
SETTINGS = {
    # The most that Apache Kafka allows.
    "group_share_max_size": "1000",
    "group_share_max_partition_max_record_locks": "10000",
    "group_share_partition_max_record_locks": "10000",
}
MEMBERS = 1_000
# Records of a batch of the log, and of a fetch of the members without a client library.
AT_A_TIME = 10
IN_FLIGHT = (200, 2_000, 10_000)
ROUNDS = scaled(5, 3)
_RUNS = itertools.count()


def java_consuming(broker: Broker, topic: str, consumers: int, count: int, mode: str) -> loads.Load:
    """Read all records as a new share group, with `KafkaShareConsumer`."""

    def run() -> float:
        said = java.run_tool(
            str(PROGRAM),
            *(broker.bootstrap, f"java-{next(_RUNS)}", topic, str(consumers), str(count), mode),
            bundle=kafka_libs.BROKER,
            timeout_s=600,
            jvm=loads.TOOL_JVM,
        ).out
        found = re.fullmatch(r"(\d+) records, ([\d.]+) records/sec", said.strip())
        assert found is not None, said
        assert int(found[1]) >= count, said
        return float(found[2])

    return run


def consumption(pair: Pair) -> Iterator[Row]:
    """`KafkaShareConsumer` in several shapes; it comes with Apache Kafka."""
    count = scaled(1_000_000, 300_000)
    pair.each(lambda broker: loads.create(broker, "jobs"))
    pair.each(lambda broker: loads.producing(broker, "jobs", 100, count)())
    for name, consumers, mode in (
        ("1 consumer", 1, "implicit"),
        ("4 consumers", 4, "implicit"),
        ("1 consumer, explicit acknowledgement", 1, "explicit"),
        ("4 consumers, explicit acknowledgement", 4, "explicit"),
    ):

        def load(broker: Broker) -> loads.Load:
            return java_consuming(broker, "jobs", consumers, count, mode)  # noqa: B023

        yield from pair.rows(f"share 100 B, {name}", load, count, ROUNDS, aim=AIM, cost_aim=COST_AIM)


def many_members(pair: Pair) -> Iterator[Row]:
    """A thousand members of one partition, each with ten records at a time."""
    count = scaled(60_000, 30_000)
    pair.each(lambda broker: loads.create(broker, "crowded"))
    # Members that ask at the same time get more than is counted.
    total = (ROUNDS + 1) * (count + MEMBERS * AT_A_TIME)
    pair.each(lambda broker: loads.producing(broker, "crowded", 100, total, batch_num_messages=AT_A_TIME)())
    assert isinstance(pair.mine, Ottla)
    with contextlib.ExitStack() as stack:

        def load(broker: Broker) -> loads.Load:
            crowd = ShareCrowd(broker, f"crowd-{next(_RUNS)}", "crowded", MEMBERS)
            stack.callback(crowd.close)
            if isinstance(broker, Ottla):
                broker.longest_turn_ms()  # without those in which modules were loaded for the first group
            return lambda: crowd.read(count, AT_A_TIME)

        yield from pair.rows(
            f"share 100 B, {MEMBERS:,} members of one partition",
            load,
            count,
            ROUNDS,
            aim=AIM,
            cost_aim=COST_AIM,
        )
    yield fewer(
        "longest turn of the event loop in this", "ms", pair.mine.longest_turn_ms(), None, "–", "≤ 10"
    )


def in_flight(pair: Pair) -> Iterator[Row]:
    """One member that holds many records: what a record costs should not depend on them."""
    count = scaled(30_000, 15_000)
    pair.each(lambda broker: loads.create(broker, "held"))
    total = count + max(IN_FLIGHT)
    pair.each(lambda broker: loads.producing(broker, "held", 100, total, batch_num_messages=AT_A_TIME)())
    costs: dict[int, list[Measured]] = {}
    for held in IN_FLIGHT:

        def load(broker: Broker) -> loads.Load:
            def run() -> float:
                with contextlib.closing(ShareCrowd(broker, f"held-{next(_RUNS)}", "held", 1)) as crowd:
                    return crowd.hold(count, AT_A_TIME, held)  # noqa: B023

            return run

        costs[held] = pair.measure(load, count + held, ROUNDS)
        yield from pair.rows_of(f"share 100 B, {held:,} in flight", costs[held], aim=AIM, cost_aim=COST_AIM)
    fewest = IN_FLIGHT[0]
    for held in IN_FLIGHT[1:]:
        mine, *theirs = [
            statistics.median(a / b for a, b in zip(many.costs, few.costs, strict=True))
            for many, few in zip(costs[held], costs[fewest], strict=True)
        ]
        name = f"cost of a record, {held:,} in flight to {fewest}"
        yield Row(name, "times", mine, theirs[0] if theirs else None, PEER, None, None, None, "≤ 1.2")


def rows() -> Iterator[Row]:
    if without_kafka() is None:
        with both() as pair:
            yield from consumption(pair)
    with both(**SETTINGS) as pair:
        yield from in_flight(pair)
        yield from many_members(pair)


if __name__ == "__main__":
    show(rows())
