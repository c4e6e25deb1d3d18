"""Two brokers under the same load, in turns: throughput, and CPU time of the process."""

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support import kafka_libs

from bench.brokers import PEER, Broker, ottla, peer
from bench.harness import Row, fewer
from bench.loads import Load

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Measured:
    """The rounds of one broker: a second's work, and CPU seconds of its process for a million records."""

    speeds: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def speed(self) -> float:
        return statistics.median(self.speeds)

    def cost(self) -> float:
        return statistics.median(self.costs)

    def busy(self) -> float:
        """Per cent of a core that the broker used under the load: if that is little, the client was the
        bottleneck.
        """
        return statistics.median(a * b / 1e4 for a, b in zip(self.speeds, self.costs, strict=True))


@dataclass(slots=True)
class Pair:
    """Ottla, and Apache Kafka if it is available."""

    mine: Broker
    theirs: Broker | None

    def brokers(self) -> list[Broker]:
        return [self.mine] if self.theirs is None else [self.mine, self.theirs]

    def each(self, do: Callable[[Broker], object]) -> None:
        for broker in self.brokers():
            do(broker)

    def measure(self, load: Callable[[Broker], Load], amount: float, rounds: int) -> list[Measured]:
        """Run interleaved rounds after a warm-up; the order changes from round to round."""
        loads = [(broker, load(broker), Measured()) for broker in self.brokers()]
        for _, run, _ in loads:
            run()
        for turn in range(rounds):
            for broker, run, measured in loads if turn % 2 == 0 else reversed(loads):
                before = broker.cpu_seconds()
                measured.speeds.append(run())
                # The system counts in ticks; count at least one.
                spent = max(broker.cpu_seconds() - before, TICK_S)
                measured.costs.append(spent / amount * 1e6)
        return [measured for _, _, measured in loads]

    def rows(
        self,
        name: str,
        load: Callable[[Broker], Load],
        amount: float,
        rounds: int,
        *,
        unit: str = "records/s",
        aim: str = "≥ 1",
        cost_aim: str = "≥ 1.7",
    ) -> Iterator[Row]:
        """Speed and cost of one load, and the load of the broker, as three rows of the table."""
        measured = self.measure(load, amount, rounds)
        yield from self.rows_of(name, measured, unit=unit, aim=aim, cost_aim=cost_aim)

    def rows_of(
        self,
        name: str,
        measured: list[Measured],
        *,
        unit: str = "records/s",
        aim: str = "≥ 1",
        cost_aim: str = "≥ 1.7",
    ) -> Iterator[Row]:
        """The rows of what `measure` has found."""
        mine, *others = measured
        busy, share = f"{name}: broker busy", "% of a core"
        if not others:
            yield Row(name, unit, mine.speed(), None, "–", None, None, None, aim)
            yield fewer(f"{name}: broker CPU", "s per million", mine.cost(), None, "–", cost_aim)
            yield Row(busy, share, mine.busy(), None, "–", None, None, None, "")
            return
        (theirs,) = others
        ratios = sorted(a / b for a, b in zip(mine.speeds, theirs.speeds, strict=True))
        yield Row(
            name,
            unit,
            mine.speed(),
            theirs.speed(),
            PEER,
            statistics.median(ratios),
            ratios[0],
            ratios[-1],
            aim,
        )
        costs = sorted(b / a for a, b in zip(mine.costs, theirs.costs, strict=True))
        yield Row(
            f"{name}: broker CPU",
            "s per million",
            mine.cost(),
            theirs.cost(),
            PEER,
            statistics.median(costs),
            costs[0],
            costs[-1],
            cost_aim,
        )
        yield Row(busy, share, mine.busy(), theirs.busy(), PEER, None, None, None, "")


def without_kafka() -> str | None:
    """Why Apache Kafka is not available; None if it is."""
    missing = kafka_libs.missing_requirement()
    return None if missing is None else f"WITHOUT APACHE KAFKA, so without ratios: {missing}"


@contextlib.contextmanager
def both(**settings: str) -> Iterator[Pair]:
    missing = without_kafka()
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(ottla(**settings))
        if missing is not None:
            print(missing, flush=True)
            yield Pair(mine, None)
        else:
            yield Pair(mine, stack.enter_context(peer(**settings)))
