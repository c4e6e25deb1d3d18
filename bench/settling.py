"""How long a new group takes until each member has its partition, beside Apache Kafka 4.3.1.

A topic has as many partitions as the group has members. The first rows are client libraries as they are: two
members that join 0.3 s apart, and ten that join together. In the others up to a hundred members without a
client library (`bench.members`) join together, in each of the four protocols; except in the classic one, both
brokers compute an assignment at most once a second, and members come back when the broker says.

Neither broker waits for more members before the first assignment of a classic or streams group, as both do
for three seconds by default.
"""

import itertools
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.support import franz_go, java, kafka_libs

from bench.brokers import PEER, Broker
from bench.harness import Row, scaled, show
from bench.loads import create
from bench.members import Crowd
from bench.versus import Pair, both

JAVA_PROGRAM = Path(__file__).parent / "java" / "GroupSettling.java"
GO_PROGRAM = Path(__file__).parent / "franz_go"
AIM = "≤ 1.5"
SETTLE_S = 60.0
ROUNDS = scaled(5, 3)
SETTINGS = {"group_streams_initial_rebalance_delay_ms": "0"}
TOPICS = {2: "two", 10: "ten", 100: "hundred"}
_RUNS = itertools.count()

Settling = Callable[[Broker, int, int, int], list[float]]
"""By broker, members, milliseconds between their joins, and rounds: the seconds of each round."""


def java_members(broker: Broker, members: int, apart_ms: int, rounds: int) -> list[float]:
    said = java.run_tool(
        str(JAVA_PROGRAM),
        *(broker.bootstrap, TOPICS[members], str(members), str(apart_ms), str(rounds)),
        bundle=kafka_libs.BROKER,
        timeout_s=600,
    )
    # Its warnings are there too.
    return [float(line) for line in said.out.splitlines() if re.fullmatch(r"\d+\.\d+", line)]


def go_members(program: Path, broker: Broker, members: int, apart_ms: int, rounds: int) -> list[float]:
    command = [str(program), broker.bootstrap, TOPICS[members], str(members), str(apart_ms), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def librdkafka_members(broker: Broker, members: int, apart_ms: int, rounds: int) -> list[float]:
    return [_librdkafka_round(broker, members, apart_ms / 1000) for _ in range(rounds)]


def _librdkafka_round(broker: Broker, members: int, apart_s: float) -> float:
    group = f"librdkafka-{members}-{next(_RUNS)}"
    owned = [0] * members
    settled = threading.Event()
    lock = threading.Lock()
    took = 0.0
    begin = time.perf_counter()

    def change(member: int, partitions: int) -> None:
        nonlocal took
        with lock:
            owned[member] += partitions
            if not settled.is_set() and all(each == 1 for each in owned):
                took = time.perf_counter() - begin
                settled.set()

    def live(member: int) -> None:
        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            change(member, len(partitions))

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            change(member, -len(partitions))

        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
        )
        consumer.subscribe([TOPICS[members]], on_assign=on_assign, on_revoke=on_revoke)
        while not settled.is_set():
            consumer.poll(0.1)
        consumer.close()

    threads = []
    for member in range(members):
        if member > 0:
            time.sleep(apart_s)
        threads.append(threading.Thread(target=live, args=(member,)))
        threads[-1].start()
    assert settled.wait(SETTLE_S), owned
    for thread in threads:
        thread.join()
    return took


def plain_members(protocol: str, crowds: dict[Broker, Crowd], broker: Broker, members: int) -> float:
    begin = time.perf_counter()
    crowds[broker].settle(protocol, f"{protocol}-{members}-{next(_RUNS)}", TOPICS[members])
    return time.perf_counter() - begin


def row(name: str, mine: list[float], theirs: list[float] | None, aim: str) -> Row:
    ours = statistics.median(mine)
    if theirs is None:
        return Row(name, "s", ours, None, "–", None, None, None, aim)
    ratios = sorted(b / a for a, b in zip(mine, theirs, strict=True))
    ratio = statistics.median(ratios)
    return Row(name, "s", ours, statistics.median(theirs), PEER, ratio, ratios[0], ratios[-1], aim)


def measured(pair: Pair, name: str, settle: Callable[[Broker], list[float]], aim: str) -> Row:
    """One row; the brokers' rounds are interleaved."""
    mine: list[float] = []
    theirs: list[float] = []
    for turn in range(ROUNDS):
        for broker in pair.brokers() if turn % 2 == 0 else reversed(pair.brokers()):
            (mine if broker is pair.mine else theirs).extend(settle(broker))
    return row(name, mine, theirs or None, aim)


def libraries(pair: Pair) -> Iterator[Row]:
    clients: dict[str, Settling] = {"librdkafka": librdkafka_members}
    if pair.theirs is not None:
        clients["Java"] = java_members  # it comes with Apache Kafka
    try:
        clients["franz-go"] = partial(go_members, franz_go.program(GO_PROGRAM).program)
    except franz_go.NoFranzGo as missing:
        print(f"without franz-go: {missing}", flush=True)
    for client, settle in clients.items():
        for members, apart_ms, how in ((2, 300, "0.3 s apart"), (10, 0, "together")):
            # A JVM is started for each round, and its first group is slow: the second one counts.
            def settle_once(broker: Broker) -> list[float]:
                return settle(broker, members, apart_ms, 2)[1:]  # noqa: B023

            name = f"{members} members of a consumer group, {client}, {how}"
            yield measured(pair, name, settle_once, AIM)


def protocols(pair: Pair) -> Iterator[Row]:
    for protocol in ("classic", "consumer", "share", "streams"):
        for members in TOPICS:
            crowds = {broker: Crowd(broker.bootstrap, members) for broker in pair.brokers()}
            one = partial(plain_members, protocol, crowds)
            for broker in pair.brokers():
                one(broker, members)
            name = f"{members} members together, {protocol} protocol"
            aim = AIM if members <= 10 else "≥ 1"
            yield measured(pair, name, lambda broker: [one(broker, members)], aim)  # noqa: B023
            for crowd in crowds.values():
                crowd.close()


def rows() -> Iterator[Row]:
    with both(**SETTINGS) as pair:
        for members, topic in TOPICS.items():
            pair.each(lambda broker: create(broker, topic, members))  # noqa: B023
        yield from libraries(pair)
        yield from protocols(pair)


if __name__ == "__main__":
    show(rows())
