"""Registrations of several nodes at once, over a topic whose leader answers late, wrongly or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from tests.support.loops import in_virtual_time

from ottla.node.cluster.internal_topic import TopicRead
from ottla.node.registry.schema_store import SchemaStore
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches, set_offset_and_epoch
from ottla.registry.errors import RegistryError
from ottla.registry.parsing import SchemaParser
from ottla.registry.registry import Registry, SchemaRequest, by_id
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop

NODES = 3
WRITERS = 8
SCHEMAS_PER_WRITER = 6


class Log:
    """The partition at its leader: it takes the batch of a producer only with the sequence that follows."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.topic_id: bytes | None = None
        self.batches: list[bytes] = []
        self.sequences: list[tuple[int, int, int]] = []  # first, last, base offset
        self.end = 0
        self.faults = 0.0

    async def pass_time(self) -> None:
        await asyncio.sleep(self.random.random() * 0.02)
        if self.random.random() < self.faults:
            raise self.random.choice(
                (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it moved"), ConnectionError("cut off"))
            )

    def append(self, batch: bytes) -> int:
        _, header = next(iter(iter_batches(batch)))
        first, last = header.base_sequence, header.base_sequence + header.last_offset_delta
        for known_first, known_last, offset in self.sequences[-5:]:
            if (known_first, known_last) == (first, last):
                return offset
        if self.sequences and first != self.sequences[-1][1] + 1:
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it is not the next one")
        taken = bytearray(batch)
        set_offset_and_epoch(taken, 0, self.end, 0)
        self.batches.append(bytes(taken))
        self.sequences.append((first, last, self.end))
        self.end += header.last_offset_delta + 1
        return self.sequences[-1][2]


class NodeTopic:
    """The log as one node reaches it."""

    name = "_schemas"

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def topic_id(self) -> bytes | None:
        return self.log.topic_id

    async def create(self) -> None:
        await asyncio.sleep(0.01)
        self.log.topic_id = b"the only topic.."

    async def append_batch(self, partition: int, batch: bytes) -> int:
        await self.log.pass_time()
        offset = self.log.append(batch)
        await self.log.pass_time()  # it is there, whatever the sender hears
        return offset

    async def committed_end(self, partition: int) -> int:
        await self.log.pass_time()
        return self.log.end

    async def read(self, partition: int, offset: int, *, waits: bool, last_epoch: int = -1) -> TopicRead:
        await self.log.pass_time()
        if waits and offset >= self.log.end:
            await asyncio.sleep(0.05)
        found = [each for each in self.log.batches if next(iter(iter_batches(each)))[1].last_offset >= offset]
        return TopicRead(b"".join(found[:2]), 0, self.log.end)

    async def close(self) -> None:
        """Nothing is held."""


class Nodes:
    def __init__(self, seed: int) -> None:
        self.log = Log(seed)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        clock, pool = LoopClock(lambda: loop.now_ns), InlinePool()
        runtime = Runtime(clock, SeededRandom(seed), None, pool, None)
        tasks = TaskSupervisor(clock, lambda reason: None)
        self.stores = [SchemaStore(runtime, tasks, NodeTopic(self.log)) for _ in range(NODES)]
        self.registries = [Registry(store, SchemaParser(HeavyWork(pool))) for store in self.stores]

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


def run(test: Coroutine[Any, Any, None], seed: int) -> None:
    SimLoop(seed).run_until_complete(test)  # type: ignore[abstract]


def named_request(name: str) -> SchemaRequest:
    return SchemaRequest(text=json.dumps({"type": "record", "name": name, "fields": []}))


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(4, 300))]
)
def test_ids_are_given_once_and_all_nodes_agree(seed: int) -> None:
    async def main() -> None:
        nodes = Nodes(seed)
        nodes.log.faults = 0.15
        given: dict[str, int] = {}

        async def write(writer: int) -> None:
            for number in range(SCHEMAS_PER_WRITER):
                registry = nodes.registries[nodes.log.random.randrange(NODES)]
                # Half of them are registered by several writers at once, under different subjects.
                name = f"Shared{number}" if writer % 2 else f"Own{writer}x{number}"
                request = named_request(name)
                answer = await registry.register(
                    "test", f"subject-{writer}-{number}", request, normalize=False
                )
                assert given.setdefault(name, answer["id"]) == answer["id"], name

        await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
        assert sorted(given.values()) == list(range(1, len(given) + 1))
        nodes.log.faults = 0.0
        for store in nodes.stores:
            await store.refresh()
        shown = []
        for registry in nodes.registries:
            found = await registry.read(
                lambda state: [
                    (name, each.version, each.id, each.text)
                    for name in state.names("")
                    for each in state.versions(name)
                ]
            )
            shown.append(found)
        assert shown[0] == shown[1] == shown[2]
        assert len(shown[0]) == WRITERS * SCHEMAS_PER_WRITER
        await nodes.close()

    run(main(), seed)


@in_virtual_time(7)
async def test_versions_of_one_subject_follow_each_other() -> None:
    nodes = Nodes(7)
    await nodes.registries[0].update_config(None, {"compatibility": "NONE"})
    answers = await asyncio.gather(
        *(
            registry.register("test", "s", named_request(f"R{number}"), normalize=False)
            for number, registry in enumerate(nodes.registries * 4)
        )
    )
    assert sorted(answer["version"] for answer in answers) == list(range(1, 13))
    assert sorted(answer["id"] for answer in answers) == list(range(1, 13))
    assert sum(store.conflicts for store in nodes.stores) > 0
    await nodes.close()


@in_virtual_time(3)
async def test_a_node_that_lags_looks_again_before_it_says_that_a_schema_is_missing() -> None:
    nodes = Nodes(3)
    await nodes.registries[1].read(lambda state: state.contexts)
    answer = await nodes.registries[0].register("test", "s", SchemaRequest(text='"string"'), normalize=False)
    found = await nodes.registries[1].read(lambda state: by_id(state, answer["id"], ""))
    assert found.text == '"string"'
    await nodes.close()


@in_virtual_time(5)
async def test_a_leader_that_is_away_is_an_error_and_not_a_missing_schema() -> None:
    nodes = Nodes(5)
    await nodes.registries[0].register("test", "s", SchemaRequest(text='"string"'), normalize=False)
    nodes.log.faults = 1.0
    with pytest.raises(RegistryError) as caught:
        await nodes.registries[1].register("test", "t", SchemaRequest(text='"int"'), normalize=False)
    assert caught.value.code == 50001
    with pytest.raises(RegistryError) as caught:
        await nodes.registries[0].register("test", "t", SchemaRequest(text='"int"'), normalize=False)
    assert caught.value.code == 50002
    await nodes.close()
