"""A transactional producer after an error, before its abort."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.transaction_manager import TransactionManager, TransactionManagerState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition


async def test_the_sender_is_not_woken_for_records_that_only_an_abort_can_follow() -> None:
    """Otherwise it asks again at once, and spins until the abort (transaction.version 0 and 1)."""
    woken: list[None] = []
    config = ProducerConfig(transactional_id="orders")
    cluster = cast("Any", SimpleNamespace(config=config))
    manager = TransactionManager(cluster, config, lambda: woken.append(None))
    manager.state = TransactionManagerState.IN_TRANSACTION
    manager.on_failed(TopicPartition("orders", 0), KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    for _ in range(3):
        assert not manager.may_send_to(TopicPartition("orders", 1))
        for _ in range(5):
            await asyncio.sleep(0)
    assert not woken


async def test_partitions_are_not_added_any_more_by_a_producer_that_is_closed() -> None:
    """What adds them belongs to the producer alone, and would fail at a client that is closed."""
    config = ProducerConfig(transactional_id="orders")
    asked = asyncio.Event()

    async def coordinator(*_: object) -> Any:
        asked.set()
        await asyncio.Event().wait()

    cluster = SimpleNamespace(config=config, coordinator=coordinator, new_backoff=lambda: None)
    manager = TransactionManager(cast("Any", cluster), config, lambda: None)
    manager.state = TransactionManagerState.IN_TRANSACTION
    assert not manager.may_send_to(TopicPartition("orders", 0))
    await asked.wait()
    tasks = len(asyncio.all_tasks())
    await manager.close()
    assert len(asyncio.all_tasks()) == tasks - 1
