"""The shop's pipeline: three streaming queries over topics, in one Spark program.

    orders, payments, clicks --clean--> shop.clean.*  and  shop.dead-letters
    shop.clean.orders + shop.clean.payments --revenue--> shop.revenue
    shop.clean.orders --table--> a Parquet table

Every topic is written exactly once. A query that fails is started again from its checkpoint. The program
tells what it does as lines of JSON, and ends when it reads `finish`, after everything that is there has
gone through.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from ottla.spark.session import session

EVENT = "id long, customer string, category string, cents long, order long, page string, at long, sent long"
TOO_LATE_MS = 30 * 60_000
WATERMARK = "3 hours"
MAX_RESTARTS = 10


class Pipeline:
    """The brokers and directories; each method after the first is one query."""

    def __init__(self, spark: SparkSession, brokers: str, checkpoints: str, table: str) -> None:
        self.spark = spark
        self.brokers = brokers
        self.checkpoints = checkpoints
        self.table_path = table

    def start(self, name: str) -> StreamingQuery:
        writer = getattr(self, name)().queryName(name)
        return writer.option("checkpointLocation", f"{self.checkpoints}/{name}").start()

    def topics(self, names: str, **options: str) -> DataFrame:
        stream = self.spark.readStream.format("ottla").option("kafka.bootstrap.servers", self.brokers)
        stream = stream.option("subscribe", names).option("startingOffsets", "earliest")
        return stream.option("kafka.isolation.level", "read_committed").options(**options).load()

    def to_topic(self, rows: DataFrame, **options: str):
        return (
            rows.writeStream.format("ottla")
            .option("kafka.bootstrap.servers", self.brokers)
            .options(**options)
        )

    def clean(self):
        """Split records into good ones, cleaned, and bad ones, unchanged, with the reason in a header."""
        records = self.topics("orders,payments,clicks", columns="key,value,topic,partition,offset,timestamp")
        read = records.withColumn("event", F.from_json(F.col("value").cast("string"), EVENT))
        checked = read.withColumn("reason", _reason())
        tidied = F.col("event").withField("category", F.lower(F.trim("event.category")))
        headers = F.array(
            _header("reason", F.col("reason")),
            _header("topic", F.col("topic")),
            _header("partition", F.col("partition").cast("string")),
            _header("offset", F.col("offset").cast("string")),
        )
        is_good = F.col("reason").isNull()
        rows = checked.select(
            "key",
            F.when(is_good, F.to_json(tidied).cast("binary")).otherwise(F.col("value")).alias("value"),
            F.when(is_good, F.concat(F.lit("shop.clean."), "topic"))
            .otherwise(F.lit("shop.dead-letters"))
            .alias("topic"),
            F.when(~is_good, headers).alias("headers"),
        )
        return self.to_topic(rows)

    def revenue(self):
        """Join orders with their payments; sum up what was paid within the hour by window and category."""
        orders = self._events("shop.clean.orders").select(
            F.col("id").alias("number"), "category", "cents", F.col("time").alias("ordered")
        )
        payments = self._events("shop.clean.payments").select("order", F.col("time").alias("paid"))
        joined = orders.withWatermark("ordered", WATERMARK).join(
            payments.withWatermark("paid", WATERMARK),
            F.expr("number = order and paid >= ordered and paid <= ordered + interval 1 hour"),
        )
        totals = joined.groupBy(F.window("ordered", "10 minutes"), "category").agg(
            F.count("*").alias("orders"), F.sum("cents").alias("cents")
        )
        value = F.struct(F.unix_millis("window.start").alias("window"), "category", "orders", "cents")
        rows = totals.select(F.col("category").alias("key"), F.to_json(value).alias("value"))
        return self.to_topic(rows, topic="shop.revenue").outputMode("append")

    def table(self):
        """Write every good order as a row of a Parquet table."""
        rows = self._events("shop.clean.orders").select("id", "customer", "category", "cents", "time")
        return rows.writeStream.format("parquet").option("path", self.table_path)

    def _events(self, topic: str) -> DataFrame:
        event = F.from_json(F.col("value").cast("string"), EVENT)
        events = self.topics(topic, columns="value").select(event.alias("event")).select("event.*")
        return events.withColumn("time", F.timestamp_millis("at"))


def _reason() -> Column:
    """The reason why a record is bad; null for a good one."""
    event, topic = F.col("event"), F.col("topic")
    missing = event.isNull() | event.id.isNull() | event.customer.isNull() | event.at.isNull()
    missing |= (topic == "orders") & (event.category.isNull() | event.cents.isNull())
    missing |= (topic == "payments") & (event.order.isNull() | event.cents.isNull())
    missing |= (topic == "clicks") & event.page.isNull()
    return (
        F.when(missing, "incomplete")
        .when((topic != "clicks") & (event.cents <= 0), "bad amount")
        .when(F.unix_millis("timestamp") - event.at > TOO_LATE_MS, "too late")
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


class Reporter(StreamingQueryListener):
    """Print a line for every batch with rows."""

    def onQueryStarted(self, event) -> None:
        tell(started=event.name)

    def onQueryProgress(self, event) -> None:
        progress = event.progress
        if progress.numInputRows:
            took = progress.durationMs.get("triggerExecution", 0)
            tell(query=progress.name, batch=progress.batchId, rows=progress.numInputRows, ms=took)

    def onQueryTerminated(self, event) -> None:
        """Do nothing: the loop below sees it."""


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def listen(finish: threading.Event) -> None:
    """Wait for the command to finish. If the parent process is gone, stop at once."""
    if sys.stdin.readline():
        finish.set()
    else:
        os._exit(1)


def main(brokers: str, checkpoints: str, table: str) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.driver.memory": "1g",
    }
    spark = session("local[2,4]", name="shop", conf=conf)  # 2 tasks at a time; a task may fail 3 times
    spark.streams.addListener(Reporter())
    pipeline = Pipeline(spark, brokers, checkpoints, table)
    queries = {name: pipeline.start(name) for name in ("clean", "revenue", "table")}
    finish = threading.Event()
    threading.Thread(target=listen, args=(finish,), daemon=True).start()
    restarts = 0
    left = list(queries)
    while left:
        for name, query in queries.items():
            if not query.isActive:
                restarts += 1
                tell(restarted=name, error=str(query.exception())[:2000])
                if restarts > MAX_RESTARTS:
                    raise SystemExit(f"{name} failed again and again")
                queries[name] = pipeline.start(name)
        if not finish.is_set():
            time.sleep(0.2)
            continue
        try:
            queries[left[0]].processAllAvailable()
            left.pop(0)
        except Exception as error:  # the query has failed: it is started again above, and asked again
            tell(waiting=left[0], error=str(error)[:500])
    for query in queries.values():
        query.stop()
    tell(finished=True, restarts=restarts)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
