"""Quix Streams on Ottla: totals by customer, with state and exactly-once processing.

    pip install quixstreams
    python examples/quix_totals.py localhost:9092

It adds up the amounts of the topic `payments` by key and writes each new total to `totals`. The state is in a
changelog topic, and input, state and output belong to one transaction: killed and started again, it goes on
without counting a payment twice. It ends by Ctrl-C.
"""

import sys

from quixstreams import Application, State

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
STATE_DIR = sys.argv[2] if len(sys.argv) > 2 else "state"

app = Application(
    broker_address=SERVERS,
    consumer_group="totals",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.5,
    state_dir=STATE_DIR,
)
payments = app.topic("payments", value_deserializer="json")
totals = app.topic("totals", value_serializer="json")


def add(payment: dict, state: State) -> dict:
    total = state.get("total", 0) + payment["amount"]
    state.set("total", total)
    return {"total": total}


stream = app.dataframe(payments)
stream = stream.apply(add, stateful=True)
stream.to_topic(totals)

if __name__ == "__main__":
    app.run()
