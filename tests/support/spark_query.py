"""A streaming query from topic to topic, as a program: `python -m tests.support.spark_query JSON`.

It runs until all records that existed at its start are read, and prints `DONE` as its last line. Each start
distributes the rows over tasks in another way, as Spark does not guarantee the same distribution.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field

DONE = "the query is done"


@dataclass(frozen=True)
class QuerySpec:
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    tasks: int
    rows_per_batch: int
    master: str = "local[2,4]"
    conf: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.spark_query", json.dumps(asdict(self))]


def main(spec: QuerySpec) -> None:
    from ottla.spark.session import session
    from tests.support.spark_sink_stops import FORMAT, register
    from tests.support.spark_standalone import SHORT_LIVED, driver_options

    conf = {
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": driver_options(),
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        **spec.conf,
    }
    spark = session(spec.master, name="kill me", conf=conf)
    register(spark)
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", spec.bootstrap)
        .option("subscribe", spec.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", spec.rows_per_batch)
        .load()
        .select("key", "value")
        .repartition(spec.tasks)
    )
    query = (
        rows.writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", spec.bootstrap)
        .option("topic", spec.target)
        .option("checkpointLocation", spec.checkpoint)
        .options(**spec.options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(DONE, flush=True)


if __name__ == "__main__":
    main(QuerySpec(**json.loads(sys.argv[1])))
