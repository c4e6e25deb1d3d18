"""FastStream on Ottla: a service that prices orders, with either of FastStream's Kafka brokers.

    pip install "faststream[kafka,confluent]"
    python examples/faststream_orders.py localhost:9092            # aiokafka
    python examples/faststream_orders.py localhost:9092 confluent  # librdkafka

It sends five orders, prices each in a subscriber that publishes the result, and ends when it has read them
all.
"""

import asyncio
import sys

from faststream import FastStream

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
CLIENT = sys.argv[2] if len(sys.argv) > 2 else "aiokafka"
ORDERS, PRICED = f"orders-{CLIENT}", f"priced-{CLIENT}"

if CLIENT == "confluent":
    from faststream.confluent import KafkaBroker
else:
    from faststream.kafka import KafkaBroker

broker = KafkaBroker(SERVERS)
app = FastStream(broker)
seen: set[int] = set()


@broker.subscriber(ORDERS, group_id=f"pricing-{CLIENT}", auto_offset_reset="earliest")
@broker.publisher(PRICED)
async def price(order: dict) -> dict:
    return {**order, "price": order["items"] * 5}


@broker.subscriber(PRICED, group_id=f"mail-{CLIENT}", auto_offset_reset="earliest")
async def mail(order: dict) -> None:
    seen.add(order["id"])
    print(f"order {order['id']}: {order['price']}", flush=True)
    if len(seen) == 5:
        app.exit()


@app.after_startup
async def send() -> None:
    for number in range(5):
        await broker.publish({"id": number, "items": number + 1}, ORDERS, key=b"%d" % number)


if __name__ == "__main__":
    asyncio.run(app.run())
