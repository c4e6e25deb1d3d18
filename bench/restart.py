"""Restart after SIGKILL: the time until a broker with gigabytes of log is ready again."""

from collections.abc import Iterator

from bench import loads
from bench.brokers import PEER, Broker
from bench.harness import Row, fewer, scaled, show
from bench.versus import both

SIZE = 1_000


def killed(broker: Broker) -> float:
    broker.kill()
    broker.start()
    return broker.ready_s


def rows() -> Iterator[Row]:
    gigabytes = scaled(5, 1)
    with both() as pair:
        pair.each(lambda broker: loads.create(broker, "large", 4))
        for broker in pair.brokers():
            loads.producing(broker, "large", SIZE, gigabytes * 1_000_000)()
        mine = killed(pair.mine)
        theirs = None if pair.theirs is None else killed(pair.theirs)
        yield fewer(f"ready after kill -9 with {gigabytes} GB", "s", mine, theirs, PEER)


if __name__ == "__main__":
    show(rows())
