"""A task queue with retries and a dead-letter topic: three workers share the tasks of one topic.

Each task goes to one worker at a time. A worker that fails releases its task, which is then delivered again;
after three deliveries the task goes to a topic for those that cannot be done. A worker that is killed holds
nothing back: its tasks go to the others. Run it with `python examples/task_queue.py`.
"""

import asyncio
import json
import logging
import sys
from collections import Counter

from ottla import Admin, LocalNode, Producer, ShareConsumer
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.groups import SharePartitionOffsetInfo
from ottla.client.share import ShareRecord

TASKS, DEAD_LETTERS, GROUP = "tasks", "dead-letters", "task-workers"
COUNT = 100
Task = ShareRecord[bytes, bytes]


# The queue.
async def work(servers: str, handler: "Handler") -> None:
    consumer = ShareConsumer[bytes, bytes](servers, group_id=GROUP, share_acknowledgement_mode="explicit")
    async with consumer, Producer(servers) as producer:

        async def bury(record: Task, error: Exception) -> None:
            headers = [*record.headers, ("error", repr(error).encode())]
            await producer.send(DEAD_LETTERS, record.value, key=record.key, headers=headers)

        consumer.subscribe(TASKS)
        workers = consumer.run_workers(
            handler, concurrency=4, max_deliveries=3, retry_backoff_ms=20, on_reject=bury
        )
        stop = asyncio.ensure_future(handler.all_done.wait())
        stop.add_done_callback(lambda _: consumer.stop_workers())
        await workers


class Handler:
    """Does a task: every tenth fails the first time, and every fiftieth always."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.given_up: set[int] = set()
        self.all_done = asyncio.Event()

    async def __call__(self, record: Task) -> None:
        task = json.loads(record.value or b"null")
        await asyncio.sleep(0.001)
        if task % 50 == 0:
            if record.delivery_count == 3:
                self.given_up.add(task)
                self._look()
            raise ValueError(f"task {task} cannot be done")
        if task % 10 == 0 and record.delivery_count == 1:
            raise OSError(f"task {task} fails once")
        self.done[task] += 1
        self._look()

    def _look(self) -> None:
        if len(self.done) + len(self.given_up) == COUNT:
            self.all_done.set()


async def main() -> bool:
    with LocalNode() as node:
        servers = node.bootstrap_servers
        async with Admin(servers) as admin, Producer(servers, value_serializer="json") as producer:
            await admin.topics.create(TASKS, partitions=1)
            await admin.topics.create(DEAD_LETTERS, partitions=1)
            await admin.configs.alter(ResourceType.GROUP, GROUP, set={"share.auto.offset.reset": "earliest"})
            for task in range(COUNT):
                await producer.send(TASKS, task)
            handler = Handler()
            await asyncio.gather(*(work(servers, handler) for _ in range(3)))
            (place,) = (await admin.groups.share_offsets(GROUP)).values()
            ends = await admin.offsets.end(DEAD_LETTERS)
    dead = sum(ends.values())
    print(f"done       {len(handler.done)}")
    print(f"dead       {dead}")
    left = place.lag if isinstance(place, SharePartitionOffsetInfo) else None
    print(f"left       {left}")
    return len(handler.done) == COUNT - 2 and dead == 2 and left == 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # workers log each task that fails, as some do here on purpose
    sys.exit(0 if asyncio.run(main()) else 1)
