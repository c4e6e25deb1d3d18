"""The shop's pipeline: four streaming queries over topics, in one Spark program.

    orders --orders--> shop.clean.orders  and  shop.dead-letters
    payments, clicks --events--> shop.clean.*  and  shop.dead-letters
    shop.clean.orders + shop.clean.payments --revenue--> shop.revenue
    shop.clean.orders --table--> a Parquet table

Orders are Avro: their columns are those of the schema that the registry has, when they are read and when
they are written. Payments and clicks are JSON. Every topic is written exactly once. A query that fails is
started again from its checkpoint. The program tells what it does as lines of JSON, and ends when it reads
`finish`, after everything that is there has gone through.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from ottla.spark.expectations import expect_or_dead_letter, source_record
from ottla.spark.session import session

QUERIES = ("orders", "events", "revenue", "table")
EVENT = "id long, customer string, cents long, order long, page string, at long, sent long"
IS_COMPLETE = """
    event.id is not null and event.customer is not null and event.at is not null and case source.topic
    when 'payments' then event.order is not null and event.cents is not null else event.page is not null end
"""
DEAD_LETTERS = "shop.dead-letters"
TOO_LATE = "interval 30 minutes"
WATERMARK = "3 hours"
MAX_RESTARTS = 10


class Pipeline:
    """The brokers and directories; each method after the first is one query."""

    def __init__(
        self, spark: SparkSession, brokers: str, registry: str, checkpoints: str, table: str
    ) -> None:
        self.spark = spark
        self.brokers = brokers
        self.avro = {"valueFormat": "avro", "schemaRegistry": registry}
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

    def orders(self):
        """Clean the orders. What does not fit the schema is a dead letter, and so is what is no order for
        other reasons.
        """
        columns = "key,value,topic,partition,offset,timestamp,valueBytes,_error"
        records = self.topics("orders", columns=columns, includeBytes="true", **self.avro)
        tidied = F.col("value").withField("category", F.lower(F.trim("value.category")))
        rows = records.select(source_record(typed=True), "key", tidied.alias("value"), "_error")
        checked = _checked(
            rows, "_error is null", "value.cents > 0", f"source.timestamp <= value.at + {TOO_LATE}"
        )
        return self.to_topic(checked, topic="shop.clean.orders", **self.avro)

    def events(self):
        """Clean payments and clicks in the same way: each good one goes to a topic of its kind."""
        records = self.topics("payments,clicks", columns="key,value,topic,partition,offset,timestamp")
        event = F.from_json(F.col("value").cast("string"), EVENT)
        checked = _checked(
            records.select(source_record(), "key", event.alias("event")),
            IS_COMPLETE,
            "source.topic = 'clicks' or event.cents > 0",
            f"source.timestamp <= timestamp_millis(event.at) + {TOO_LATE}",
        )
        topic = F.concat(F.lit("shop.clean."), "source.topic")
        return self.to_topic(checked.withColumn("topic", topic).withColumn("value", F.to_json("event")))

    def revenue(self):
        """Join orders with their payments; sum up what was paid within the hour by window and category."""
        orders = self._clean_orders().select(
            F.col("id").alias("number"), "category", "cents", F.col("at").alias("ordered")
        )
        event = F.from_json(F.col("value").cast("string"), EVENT)
        payments = self.topics("shop.clean.payments", columns="value").select(event.alias("event"))
        payments = payments.select("event.order", F.timestamp_millis("event.at").alias("paid"))
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
        rows = self._clean_orders().select("id", "customer", "category", "cents", "at")
        return rows.writeStream.format("parquet").option("path", self.table_path)

    def _clean_orders(self) -> DataFrame:
        return self.topics("shop.clean.orders", columns="value", **self.avro).select("value.*")


def _checked(rows: DataFrame, is_complete: str, costs_something: str, is_in_time: str) -> DataFrame:
    """Set rows that break a rule aside, with the name of the first one in a header of the dead letter."""
    for name, rule in (
        ("incomplete", is_complete),
        ("bad amount", costs_something),
        ("too late", is_in_time),
    ):
        rows = rows.transform(expect_or_dead_letter(name, rule, topic=DEAD_LETTERS))
    return rows


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


def main(brokers: str, registry: str, checkpoints: str, table: str) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.driver.memory": "1g",
    }
    spark = session("local[2,4]", name="shop", conf=conf)  # 2 tasks at a time; a task may fail 3 times
    spark.streams.addListener(Reporter())
    pipeline = Pipeline(spark, brokers, registry, checkpoints, table)
    queries = {name: pipeline.start(name) for name in QUERIES}
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
