"""Transactions: those of coordinators, and those that are open in partitions and hold back readers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ottla.client.admin.offsets import OffsetSpec
from ottla.client.admin.transactions import ListedTransaction, TransactionInfo
from ottla.console.api_request import ApiRequest, page_of
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.group_lag import end_offsets
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition

MAX_PARTITIONS: Final = 1_000
MAX_OPEN: Final = 200
_AT_ONCE: Final = 20


async def list_transactions(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    admin = await context.access.admin()
    everything = await admin.transactions.list()
    state = request.text("state")
    found = [each for each in everything if not state or each.state == state]
    infos: dict[str, TransactionInfo] = {}
    problems: list[str] = []
    now = context.now_ms()
    if request.text("sort") == "duration":
        infos = await _describe(context, [each for each in found if "Complete" not in each.state], problems)

    def duration(each: ListedTransaction) -> int | None:
        info = infos.get(each.transactional_id)
        return None if info is None or info.started_ms is None else now - info.started_ms

    chosen, page = page_of(
        request,
        found,
        name=lambda each: each.transactional_id,
        sorts={
            "id": lambda each: each.transactional_id,
            "state": lambda each: each.state,
            "producerId": lambda each: each.producer_id,
            "duration": duration,
        },
    )
    infos |= await _describe(
        context, [each for each in chosen if each.transactional_id not in infos], problems
    )
    page["items"] = [_item(each, infos.get(each.transactional_id), now) for each in chosen]
    page["states"] = sorted({each.state for each in everything})
    page["problems"] = problems
    return page


async def _describe(
    context: ApiContext, listed: list[ListedTransaction], problems: list[str]
) -> dict[str, TransactionInfo]:
    admin = await context.access.admin()
    places = asyncio.Semaphore(_AT_ONCE)
    found: dict[str, TransactionInfo] = {}

    async def look(name: str) -> None:
        async with places:
            try:
                found[name] = await admin.transactions.describe(name)
            except KafkaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and len(problems) < 10:
                    problems.append(error.message)

    await asyncio.gather(*(look(each.transactional_id) for each in listed))
    return found


def _item(listed: ListedTransaction, info: TransactionInfo | None, now: int) -> dict[str, Any]:
    started = None if info is None else info.started_ms
    is_over = info is not None and "Complete" in info.state  # it keeps the time at which it began
    return {
        "id": listed.transactional_id,
        "producerId": listed.producer_id,
        "producerEpoch": None if info is None else info.producer_epoch,
        "state": listed.state if info is None else info.state,
        "startedMs": started,
        "durationMs": None if started is None or is_over else max(now - started, 0),
        "timeoutMs": None if info is None else info.timeout_ms,
        "partitions": None if info is None else len(info.partitions),
    }


async def describe_transaction(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    admin = await context.access.admin()
    info = await admin.transactions.describe(request.required("id"))
    listed = ListedTransaction(info.transactional_id, info.producer_id, info.state)
    return {
        **_item(listed, info, context.now_ms()),
        "partitions": [each._asdict() for each in sorted(info.partitions)[:MAX_PARTITIONS]],
        "partitionCount": len(info.partitions),
    }


async def open_transactions(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """The partitions whose last stable offset is below their end, and the producers that hold it back."""
    name = request.text("topic")
    topics = [each for each in await context.access.topics() if not name or each.name == name]
    if name and not topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    partitions = [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if each.leader >= 0
    ]
    listing = await context.access.listing()
    problems: list[str] = []
    ends = await end_offsets(context.access, partitions)
    stable = await listing.offsets.list(dict.fromkeys(ends, int(OffsetSpec.LATEST)), read_committed=True)
    held = {
        each: at.offset
        for each, at in stable.items()
        if not isinstance(at, KafkaError) and at.offset < ends[each]
    }
    chosen = dict(sorted(held.items())[:MAX_PARTITIONS])
    producers = await listing.partitions.producers(chosen) if chosen else {}
    admin = await context.access.admin()
    ids = {
        each.producer_id
        for found in producers.values()
        if not isinstance(found, KafkaError)
        for each in found
        if each.current_txn_start_offset >= 0
    }
    known: dict[int, TransactionInfo] = {}
    if ids:
        try:
            listed = await admin.transactions.list(producer_ids=sorted(ids)[:MAX_OPEN])
            infos = await _describe(context, listed, problems)
            known = {info.producer_id: info for info in infos.values()}
        except KafkaError as error:
            problems.append(error.message)
    now = context.now_ms()
    items = []
    for partition, offset in chosen.items():
        found = producers.get(partition, [])
        if isinstance(found, KafkaError):
            problems.append(found.message)
            found = []
        items.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "lastStableOffset": offset,
                "endOffset": ends[partition],
                "heldBack": ends[partition] - offset,
                "producers": [
                    {
                        "producerId": each.producer_id,
                        "producerEpoch": each.producer_epoch,
                        "startOffset": each.current_txn_start_offset,
                        "lastTimestamp": each.last_timestamp,
                        "idleMs": max(now - each.last_timestamp, 0),
                        "transactionalId": None if info is None else info.transactional_id,
                        "state": None if info is None else info.state,
                        "holdsBack": each.current_txn_start_offset == offset,
                        "hanging": info is None or partition not in info.partitions,
                    }
                    for each in found
                    if each.current_txn_start_offset >= 0
                    for info in [known.get(each.producer_id)]
                ][:MAX_OPEN],
            }
        )
    return {"items": items, "looked": len(ends), "total": len(partitions), "problems": problems[:20]}


async def abort_by_coordinator(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    admin = await context.access.admin()
    transactional_id = request.required("id")
    await admin.transactions.describe(transactional_id)
    producer_id, producer_epoch = await admin.transactions.fence(transactional_id)
    return {"producerId": producer_id, "producerEpoch": producer_epoch}


async def abort_in_partition(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    body = request.body()
    partition = TopicPartition(body.text("topic"), body.integer("partition", high=2**31 - 1))
    admin = await context.access.admin(partition.topic)
    producer = await admin.transactions.open_at(partition, body.integer("startOffset"))
    await admin.transactions.abort(partition, producer)
    return {}


ROUTES: Final = (
    ConsoleRoute("GET", "/api/transactions", list_transactions),
    ConsoleRoute("GET", "/api/transactions/open", open_transactions),
    ConsoleRoute("POST", "/api/transactions/abort", abort_in_partition),
    ConsoleRoute("GET", "/api/transaction", describe_transaction),
    ConsoleRoute("POST", "/api/transaction/abort", abort_by_coordinator),
)
