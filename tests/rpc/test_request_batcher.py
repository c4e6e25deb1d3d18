"""Requests to other brokers: batched, in order, answered or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.rpc.request_batcher import RequestBatcher


class Broker:
    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.trouble: Exception | None = None
        self.go = asyncio.Event()

    async def send(self, broker: int, requests: Sequence[str]) -> list[str]:
        self.asked.append(list(requests))
        await self.go.wait()
        if self.trouble is not None:
            raise self.trouble
        return [f"{broker}:{request}" for request in requests]


async def test_what_comes_while_a_request_is_under_way_goes_together_in_the_next() -> None:
    broker = Broker()
    batcher = RequestBatcher(broker.send, lambda request: request)
    first = batcher.submit(1, "a")
    await asyncio.sleep(0)
    others = [batcher.submit(1, each) for each in "bcd"]
    broker.go.set()
    assert await first == "1:a"
    assert [await each for each in others] == ["1:b", "1:c", "1:d"]
    assert broker.asked == [["a"], ["b", "c", "d"]]


async def test_requests_with_the_same_key_do_not_go_together() -> None:
    broker = Broker()
    broker.go.set()
    batcher = RequestBatcher(broker.send, lambda request: request[0])
    answers = [batcher.submit(1, each) for each in ("a1", "b1", "a2")]
    assert [await each for each in answers] == ["1:a1", "1:b1", "1:a2"]
    assert broker.asked == [["a1", "b1"], ["a2"]]


async def test_very_many_go_in_several_and_in_order() -> None:
    broker = Broker()
    broker.go.set()
    batcher = RequestBatcher(broker.send, lambda request: request.rstrip("'"))
    requests = ["0", "0'", *(str(each) for each in range(1, 2500)), "2499'"]
    answers = [batcher.submit(1, each) for each in requests]
    assert [await each for each in answers] == [f"1:{each}" for each in requests]
    assert [len(each) for each in broker.asked] == [1000, 1000, 501, 1]
    assert [each[0] for each in broker.asked] == ["0", "0'", "1999", "2499'"]


async def test_a_request_whose_caller_is_gone_is_not_sent() -> None:
    broker = Broker()
    batcher = RequestBatcher(broker.send, lambda request: request)
    first = batcher.submit(1, "a")
    await asyncio.sleep(0)
    batcher.submit(1, "b").cancel()
    last = batcher.submit(1, "c")
    broker.go.set()
    await first
    await last
    assert broker.asked == [["a"], ["c"]]


@pytest.mark.parametrize(
    "trouble",
    [ConnectionRefusedError("connection refused"), KafkaError(ErrorCode.UNSUPPORTED_VERSION, "too old")],
    ids=str,
)
async def test_all_that_went_together_hear_of_a_failure(trouble: Exception) -> None:
    broker = Broker()
    broker.trouble = trouble
    broker.go.set()
    batcher = RequestBatcher(broker.send, lambda request: request)
    for answer in [batcher.submit(1, each) for each in "ab"]:
        with pytest.raises(OSError):
            await answer
    broker.trouble = None
    assert await batcher.submit(1, "c") == "1:c"


async def test_requests_to_a_broker_that_has_left_fail_at_once() -> None:
    broker = Broker()
    batcher = RequestBatcher(broker.send, lambda request: request)
    asked = batcher.submit(1, "a")
    await asyncio.sleep(0)
    waiting = batcher.submit(1, "b")
    batcher.on_broker_gone(1)
    for answer in (asked, waiting):
        with pytest.raises(ConnectionError):
            await answer
    broker.go.set()
    assert await batcher.submit(1, "c") == "1:c", "it may come back"


async def test_a_question_right_after_a_broker_has_gone_is_asked() -> None:
    broker = Broker()
    batcher = RequestBatcher(broker.send, lambda request: request)
    batcher.submit(1, "a")
    await asyncio.sleep(0)
    batcher.on_broker_gone(1)
    broker.go.set()
    assert await batcher.submit(1, "b") == "1:b"
    await batcher.close()


@pytest.mark.parametrize("trouble", [ValueError("not expected"), asyncio.CancelledError()])
async def test_an_error_of_the_program_fails_its_requests_and_no_others(trouble: BaseException) -> None:
    async def send(broker: int, requests: Sequence[str]) -> Sequence[str]:
        if requests == ["a"]:
            await asyncio.sleep(0)
            raise trouble
        return requests

    batcher: RequestBatcher[str, str] = RequestBatcher(send, lambda request: request)
    first = batcher.submit(1, "a")
    await asyncio.sleep(0)
    second = batcher.submit(1, "b")
    with pytest.raises(ConnectionError):
        await first
    async with asyncio.timeout(30):
        assert await second == "b"


async def test_too_few_responses_leave_no_request_waiting() -> None:
    async def send(broker: int, requests: Sequence[str]) -> list[str]:
        return []

    batcher: RequestBatcher[str, str] = RequestBatcher(send, lambda request: request)
    with pytest.raises(ConnectionError):
        await batcher.submit(1, "a")
