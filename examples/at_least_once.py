"""At least once: the payment is booked first, then the offset is committed.

A worker that dies in between has booked payments whose offsets are not committed, and its successor books
them again: none is lost, some are booked twice. Run it with `python examples/at_least_once.py`.
"""

import sys

import delivery

from ottla import Producer


async def work(servers: str, crash: delivery.Crash) -> None:
    done = 0
    async with delivery.consumer(servers) as consumer, Producer(servers) as producer:
        async for batch in delivery.batches(consumer):
            for payment in batch:
                crash.point(done)
                await producer.send(delivery.BOOKINGS, payment)
                done += 1
            await consumer.commit()


if __name__ == "__main__":
    sys.exit(delivery.run(work, expected=lambda lost, doubled: lost == 0 and doubled > 0))
