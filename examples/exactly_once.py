"""Exactly once: bookings and offset are one transaction.

A worker that dies leaves an open transaction. Its successor has the same transactional id, so the coordinator
aborts that transaction, and consumers of committed records never see it: none is lost, none is booked twice.
Run it with `python examples/exactly_once.py`.
"""

import sys

import delivery

from ottla import Producer


async def work(servers: str, crash: delivery.Crash) -> None:
    done = 0
    async with (
        Producer(servers, transactional_id="bookkeeper") as producer,
        delivery.consumer(servers) as consumer,
    ):
        async for batch in delivery.batches(consumer):
            async with producer.transaction() as transaction:
                for payment in batch:
                    crash.point(done)
                    await producer.send(delivery.BOOKINGS, payment)
                    done += 1
                await transaction.send_offsets(consumer)


if __name__ == "__main__":
    sys.exit(delivery.run(work, expected=lambda lost, doubled: lost == doubled == 0))
