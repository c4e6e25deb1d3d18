"""Which worker runs what: modules stay together, and what shares a heavy thing runs on one worker.

xdist hands out units of work. Here a unit is a module, so that its fixtures are made once, or all modules
that share a heavy thing: a session of Spark, an Apache Kafka and a JVM with its clients. These come first,
then modules of directories whose tests take long, and the many small ones, by which the workers end together.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK: Final = "what uses the session of Spark"
KAFKA: Final = "what uses Apache Kafka"
HOUSE: Final = "what reads the code"
# By what a module asks for it, directly or by a fixture. A module that is missed here starts one of its own.
ASKS_FOR: Final = (
    ("tests/spark/", SPARK, ("spark: SparkSession", "WarmPipeline", "SourceHarness")),
    ("tests/cli/", KAFKA, ("ottla: CommandLine",)),
    ("tests/client/", KAFKA, ("admin: Admin", "servers: str", "broker: Broker", "topic: str")),
    ("tests/house/", HOUSE, ("",)),  # each parses all of it
    ("tests/", KAFKA, ("apache_kafka: ", "java_driver: ", '"apache_kafka"', '"java_driver"')),
)
# The units that are handed out first, in this order.
EARLY: Final = (
    SPARK,
    KAFKA,
    # What is there beside the session: programs that start Spark themselves.
    *("tests/spark/", "tests/cluster/", "tests/zookeeper/", "tests/acceptance/", "tests/sim/"),
    HOUSE,
    *("tests/tables/", "tests/guarantees/", "tests/node/", "tests/security/", "tests/console/", "tests/cli/"),
)


class HeavyThingsTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out units in the order of `EARLY`, the larger ones of a directory first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = min(self.workqueue, key=lambda unit: (_rank(unit), -len(self.workqueue[unit])))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@cache
def unit_of(module: str) -> str:
    """Return the unit of a module, given as its path below the project."""
    source = (ROOT / module).read_text()
    for directory, unit, words in ASKS_FOR:
        if module.startswith(directory) and any(word in source for word in words):
            return unit
    return module


def _rank(unit: str) -> int:
    return next((rank for rank, early in enumerate(EARLY) if unit.startswith(early)), len(EARLY))
