"""End-to-end latency at a modest rate, from produce to consume, through each broker."""

from collections.abc import Iterator

from bench import loads
from bench.brokers import PEER
from bench.harness import Row, fewer, scaled, show
from bench.plots import Plot, plot
from bench.versus import both

RATE = 500
QUANTILES = ((0.5, "p50", ""), (0.99, "p99", "≥ 2"), (0.999, "p99.9", ""))


def at(ordered: list[float], quantile: float) -> float:
    return ordered[min(int(len(ordered) * quantile), len(ordered) - 1)]


def rows() -> Iterator[Row]:
    with both() as pair:
        pair.each(lambda broker: loads.create(broker, "latency"))
        taken: dict[str, list[float]] = {broker.name: [] for broker in pair.brokers()}
        for _ in range(scaled(5, 3)):
            for broker in pair.brokers():
                taken[broker.name] += loads.latencies(broker, "latency", scaled(5_000, 2_000), RATE)
        for times in taken.values():
            times.sort()
        mine = taken[pair.mine.name]
        theirs = None if pair.theirs is None else taken[pair.theirs.name]
        for quantile, name, aim in QUANTILES:
            peer = None if theirs is None else at(theirs, quantile)
            yield fewer(f"end to end at {RATE}/s, {name}", "ms", at(mine, quantile), peer, PEER, aim)
        steps = [n / 1000 for n in range(1, 1000)]
        plot(
            Plot(
                "latency",
                f"Produce to consume at {RATE} records a second",
                "share of records",
                "ms",
                {name: [(step, at(times, step)) for step in steps] for name, times in taken.items()},
                log_y=True,
            )
        )


if __name__ == "__main__":
    show(rows())
