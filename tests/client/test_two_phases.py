"""Prepared transactions: the first phase survives the producer, the second one commits or aborts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.producer import PreparedTransaction, Producer
from ottla.protocol.errors import KafkaError
from ottla.testing.local_node import LocalNode
from tests.client.test_transactions import expect_visible, visible
from tests.support.apache_kafka import ApacheKafka

SETTINGS = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A node that lets transactions be prepared."""
    with LocalNode(SETTINGS) as node:
        yield node.bootstrap_servers


def two_phases(servers: str, name: str) -> Producer:
    return Producer(servers, transactional_id=name, transaction_two_phase_commit_enable=True)


async def prepared(servers: str, topic: str, name: str) -> PreparedTransaction:
    """The first phase, by a producer that is then gone."""
    async with two_phases(servers, name) as producer:
        await producer.ready(topic)
        producer.transactions.begin()
        producer.send_nowait(topic, b"prepared", partition=0)
        state = await producer.transactions.prepare()
        with pytest.raises(KafkaError, match="waits for its end"):
            producer.send_nowait(topic, b"too late", partition=0)
        return state


async def test_another_producer_commits_what_was_prepared(servers: str, topic: str, fresh_name: str) -> None:
    state = await prepared(servers, topic, fresh_name)
    assert await visible(servers, topic) == []
    producer = two_phases(servers, fresh_name)
    await producer.start(keep_prepared=True)
    try:
        assert await producer.transactions.complete(PreparedTransaction.parse(str(state)))
        await producer.ready(topic)
        async with producer.transaction():
            await producer.send(topic, b"next", partition=0)
    finally:
        await producer.close()
    await expect_visible(servers, topic, [b"next", b"prepared"])


async def test_a_transaction_that_is_not_claimed_is_aborted(
    servers: str, topic: str, fresh_name: str
) -> None:
    state = await prepared(servers, topic, fresh_name)
    producer = two_phases(servers, fresh_name)
    await producer.start(keep_prepared=True)
    try:
        assert not await producer.transactions.complete(state._replace(epoch=state.epoch + 7))
    finally:
        await producer.close()
    assert await visible(servers, topic) == []


@pytest.mark.kafka
async def test_a_broker_that_cannot_keep_them_is_named_as_the_cause(
    tmp_path_factory: pytest.TempPathFactory, fresh_name: str
) -> None:
    """Apache Kafka 4.3 takes part in the first phase only."""
    with ApacheKafka(tmp_path_factory.mktemp("two-phases"), properties=SETTINGS) as kafka:
        producer = two_phases(kafka.bootstrap, fresh_name)
        with pytest.raises(KafkaError, match="this broker cannot keep prepared transactions"):
            await producer.start(keep_prepared=True)
