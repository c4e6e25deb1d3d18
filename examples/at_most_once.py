"""At most once: the offset is committed first, then the payment is booked.

A worker that dies in between has committed offsets of payments that it has not booked: some are lost, none is
booked twice. Run it with `python examples/at_most_once.py`.
"""

import sys

import delivery

from ottla import Producer


async def work(servers: str, crash: delivery.Crash) -> None:
    done = 0
    async with delivery.consumer(servers) as consumer, Producer(servers) as producer:
        async for batch in delivery.batches(consumer):
            await consumer.commit()
            for payment in batch:
                crash.point(done)
                await producer.send(delivery.BOOKINGS, payment)
                done += 1


if __name__ == "__main__":
    sys.exit(delivery.run(work, expected=lambda lost, doubled: lost > 0 and doubled == 0))
