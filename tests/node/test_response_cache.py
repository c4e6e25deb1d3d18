"""The cache returns no response of another image, version, address or request, and it is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.wire import WireClient

from ottla.metadata.image.image import ClusterImage, FeaturesImage, MetadataImage, Provenance, TopicsImage
from ottla.node.api.context import RequestContext
from ottla.node.api.handlers import metadata
from ottla.node.api.response_cache import MAX_CACHE_BYTES, ResponseCache
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import request_parts
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.testing.local_node import LocalNode

HERE = ("127.0.0.1", 9092)
_CORRELATION_ID_BYTES = 4


def test_a_new_state_of_the_cluster_empties_the_cache() -> None:
    cache = ResponseCache()
    first = MetadataImage()
    changed = {
        "topics": TopicsImage(),
        "cluster": ClusterImage(),
        "features": FeaturesImage(),
        "configs": dict(first.configs),
    }
    for part, value in changed.items():
        check_that_it_empties(cache, first, replace(first, **{part: value}))


def test_an_image_that_only_has_a_later_offset_leaves_the_cache_as_it_is() -> None:
    first, cache = MetadataImage(), ResponseCache()
    second = replace(first, provenance=Provenance(7), next_producer_id=1000)
    cache.put(first, (9, HERE, b"all"), b"one")
    assert cache.get(second, (9, HERE, b"all")) == b"one"
    cache.put(second, (9, HERE, b"some"), b"two")
    assert cache.get(first, (9, HERE, b"all")) == b"one"
    assert cache.get(first, (9, HERE, b"some")) == b"two"


def check_that_it_empties(cache: ResponseCache, first: MetadataImage, second: MetadataImage) -> None:
    cache.put(first, (9, HERE, b"all"), b"one")
    assert cache.get(first, (9, HERE, b"all")) == b"one"
    assert cache.get(second, (9, HERE, b"all")) is None
    cache.put(second, (9, HERE, b"all"), b"two")
    assert cache.get(second, (9, HERE, b"all")) == b"two"
    assert cache.get(first, (9, HERE, b"all")) is None


def test_version_address_and_body_are_the_key() -> None:
    image, cache = MetadataImage(), ResponseCache()
    cache.put(image, (9, HERE, b"all"), b"one")
    for other in ((8, HERE, b"all"), (9, ("10.0.0.1", 9092), b"all"), (9, HERE, b"some")):
        assert cache.get(image, other) is None


def test_the_oldest_make_room_and_what_is_too_large_is_not_kept() -> None:
    image, cache = MetadataImage(), ResponseCache()
    answer = bytes(MAX_CACHE_BYTES // 4)
    for n in range(5):
        cache.put(image, (n, HERE, b""), answer)
    kept = [n for n in range(5) if cache.get(image, (n, HERE, b"")) is not None]
    assert kept == [2, 3, 4]
    cache.put(image, (9, HERE, b""), bytes(MAX_CACHE_BYTES))
    assert cache.get(image, (9, HERE, b"")) is None
    assert cache.get(image, (4, HERE, b"")) is not None


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"auto.create.topics.enable": False}) as node:
        yield node


def test_clients_see_every_change_at_once(node: LocalNode) -> None:
    ask = MetadataRequest(topics=[MetadataRequestTopic(name="fleeting")])
    with WireClient(node.bootstrap_servers) as client, WireClient(node.bootstrap_servers) as other:

        def metadata() -> tuple[int, int]:
            first, second = (each.get(ask, 12, MetadataResponse).topics[0] for each in (client, other))
            assert first == second
            return first.error_code, len(first.partitions)

        for partitions in (1, 3):
            assert metadata() == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
            create = CreateTopicsRequest(
                topics=[CreatableTopic(name="fleeting", num_partitions=partitions, replication_factor=1)]
            )
            assert client.get(create, 7, CreateTopicsResponse).topics[0].error_code == ErrorCode.NONE
            assert metadata() == (ErrorCode.NONE, partitions)
            assert metadata() == (ErrorCode.NONE, partitions)
            delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="fleeting")])
            assert client.get(delete, 6, DeleteTopicsResponse).responses[0].error_code == ErrorCode.NONE


MANY = 3_000
CLIENTS = 20


@pytest.mark.slow
def test_all_of_many_topics_are_listed_in_turns_and_once_for_all_who_ask(node: LocalNode) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WireClient(node.bootstrap_servers)) for _ in range(CLIENTS)]
        create = CreateTopicsRequest(
            topics=[
                CreatableTopic(name=f"many-{n}", num_partitions=MANY // 3, replication_factor=1)
                for n in range(3)
            ],
            timeout_ms=60_000,
        )
        made = clients[0].get(create, 7, CreateTopicsResponse)
        assert {topic.error_code for topic in made.topics} == {ErrorCode.NONE}
        for client in clients:
            client.send(MetadataRequest(topics=None), 12)
        answers = {(client.receive_frame() or b"")[_CORRELATION_ID_BYTES:] for client in clients}
        assert len(answers) == 1
        response = clients[0].get(MetadataRequest(topics=None), 12, MetadataResponse)
        assert sum(len(topic.partitions) for topic in response.topics) == MANY
        delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="many-1")], timeout_ms=60_000)
        assert clients[0].get(delete, 6, DeleteTopicsResponse).responses[0].error_code == ErrorCode.NONE
        response = clients[1].get(MetadataRequest(topics=None), 12, MetadataResponse)
        assert sorted(topic.name or "" for topic in response.topics) == ["many-0", "many-2"]


def test_few_bulky_responses_are_made_at_once(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no two requests are alike: bytes after the body are ignored, and make them different."""
    at_once = most = 0
    in_turns = metadata._all_topics_in_turns

    async def counted(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(0.01)
            return await in_turns(context, request)
        finally:
            at_once -= 1

    monkeypatch.setattr(metadata, "_is_bulky", lambda image: True)
    monkeypatch.setattr(metadata, "_all_topics_in_turns", counted)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WireClient(node.bootstrap_servers)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            ask = b"".join(request_parts(12, 1, None, MetadataRequest(topics=None)))[4:]
            client.send_frame(ask + bytes([number]))
        assert None not in [client.receive_frame() for client in clients]
    assert (at_once, most) == (0, 2)


async def test_a_response_in_work_is_for_those_who_would_get_the_same() -> None:
    image, cache, key = MetadataImage(), ResponseCache(), (9, HERE, b"all", None)
    assert cache.in_work(image, key) is None
    first = cache.begin(image, key)
    assert cache.in_work(replace(image, provenance=Provenance(7)), key) is first
    assert cache.in_work(image, (9, HERE, b"some", None)) is None
    changed = replace(image, topics=TopicsImage())
    assert cache.in_work(changed, key) is None
    second = cache.begin(changed, key)
    cache.end(key, first, b"old")
    assert (await first, cache.in_work(changed, key)) == (b"old", second)
    cache.end(key, second, None)
    assert (await second, cache.in_work(changed, key)) == (None, None)
