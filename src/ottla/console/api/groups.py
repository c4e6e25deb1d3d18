"""Groups of every protocol: members, assignments, lag, and resets of offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ottla.client.admin.configs import ResourceType
from ottla.client.admin.groups import (
    GroupInfo,
    ListedGroupInfo,
    MemberDescription,
    ShareRecords,
    ShareRecordsAction,
    active_group_message,
)
from ottla.client.admin.offsets import OffsetSpec
from ottla.console.api.streams import event_stream
from ottla.console.api.topics import offsets_by_partition
from ottla.console.api_request import ApiRequest, ConsoleError, JsonBody, bad_request, page_of
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.group_lag import (
    GroupOffset,
    PartitionLag,
    committed_offsets,
    end_offsets,
    group_lags,
    total_lag,
)
from ottla.console.history import Sample, SampledHistories, SampledHistory
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.http_server import HttpServerResponse

MAX_MEMBERS: Final = 1_000
MAX_PARTITIONS: Final = 2_000
MAX_RESET: Final = 20_000
MAX_HISTORIES: Final = 50
MAX_TOPICS: Final = 10
MAX_RANGES: Final = 200
_DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
_POINTS: Final = 720
_INTERVAL_SECONDS: Final = 5.0
_KEEP_SECONDS: Final = 3_600.0
_AT_ONCE: Final = 20


async def list_groups(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    admin = await context.access.admin()
    everything = await admin.groups.list()
    type, state = request.text("type"), request.text("state")
    groups = [
        each
        for each in everything
        if (not type or _type(each) == type) and (not state or each.state == state)
    ]
    details: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    if (sort := request.text("sort")) in ("lag", "members"):
        details = await _details(context, groups, problems)
    chosen, page = page_of(
        request,
        groups,
        name=lambda group: group.group_id,
        sorts={
            "id": lambda group: group.group_id,
            "type": _type,
            "state": lambda group: group.state,
            "lag": lambda group: details.get(group.group_id, {}).get("lag"),
            "members": lambda group: details.get(group.group_id, {}).get("members"),
        },
    )
    if sort not in ("lag", "members"):
        details = await _details(context, chosen, problems)
    page["items"] = [
        {
            "id": group.group_id,
            "type": _type(group),
            "protocolType": group.protocol_type,
            "state": group.state or None,
            **details.get(group.group_id, {"members": None, "topics": None, "lag": None}),
        }
        for group in chosen
    ]
    page["types"] = sorted({_type(each) for each in everything})
    page["states"] = sorted({each.state for each in everything if each.state})
    page["problems"] = problems
    return page


def _type(group: ListedGroupInfo) -> str:
    return group.type.lower() or "classic"


async def _details(
    context: ApiContext, groups: list[ListedGroupInfo], problems: list[str]
) -> dict[str, dict[str, Any]]:
    """The members, topics and lag of groups; of all of them the ends of partitions are asked for at once."""
    admin = await context.access.admin()
    places = asyncio.Semaphore(_AT_ONCE)
    committed: dict[str, dict[TopicPartition, GroupOffset]] = {}
    members: dict[str, int | None] = {}

    async def look(group: ListedGroupInfo) -> None:
        async with places:
            try:
                committed[group.group_id] = await committed_offsets(admin, group.group_id, _type(group))
                count = 0
                if group.state != "Empty":
                    count = len((await admin.groups.describe(group.group_id)).members)
                members[group.group_id] = count
            except KafkaError as error:
                if len(problems) < 10:
                    problems.append(error.message)

    await asyncio.gather(*(look(each) for each in groups))
    ends = await end_offsets(context.access, {each for offsets in committed.values() for each in offsets})
    return {
        group_id: {
            "members": members.get(group_id),
            "topics": len({each.topic for each in offsets}),
            "lag": total_lag(PartitionLag(each, at, ends.get(each)) for each, at in offsets.items()),
        }
        for group_id, offsets in committed.items()
    }


async def describe_group(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    group_id = request.required("id")
    admin = await context.access.admin()
    info = await admin.groups.describe(group_id)
    problems: list[str] = []
    lags: list[PartitionLag] = []
    try:
        committed = await committed_offsets(admin, group_id, info.type)
        assigned = {each: member.member_id for member in info.members for each in member.assignment}
        lags = await group_lags(context.access, committed, assigned)
        owners = {} if info.type == "share" else assigned  # there, a partition has many
    except KafkaError as error:
        problems.append(error.message)
        owners = {}
    shown = lags[:MAX_PARTITIONS]
    starts = await end_offsets(context.access, (each.partition for each in shown), OffsetSpec.EARLIEST)
    return {
        "id": info.group_id,
        "type": info.type,
        "protocolType": info.protocol_type,
        "state": info.state,
        "assignor": info.assignor or None,
        "epoch": info.epoch if info.epoch >= 0 else None,
        "coordinator": await _coordinator(context, group_id),
        "members": [_member(each, info) for each in info.members[:MAX_MEMBERS]],
        "memberCount": len(info.members),
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": each.committed,
                "metadata": each.metadata[:1_000],
                "start": starts.get(each.partition),
                "end": each.end,
                "lag": each.lag,
                "memberId": owners.get(each.partition),
                **({"done": each.done} if info.type == "share" else {}),
            }
            for each in shown
        ],
        "partitionCount": len(lags),
        "lag": total_lag(lags),
        "problems": problems,
    }


def _member(member: MemberDescription, info: GroupInfo) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": member.member_id,
        "instanceId": member.instance_id,
        "clientId": member.client_id,
        "host": member.host,
        "epoch": member.epoch if member.epoch >= 0 else None,
        "rack": member.rack,
        "partitions": [each._asdict() for each in sorted(member.assignment)[:MAX_PARTITIONS]],
        "subscription": list(member.subscription),
    }
    if info.type == "streams":
        found["tasks"] = {name: list(tasks) for name, tasks in member.tasks.items()}
    return found


async def _coordinator(context: ApiContext, group_id: str) -> int | None:
    """The broker that coordinates a group."""
    admin = await context.access.admin()
    try:
        return await admin.groups.coordinator(group_id)
    except KafkaError:
        return None


# Lag over time


async def lag_history(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    history = await _history(context, request.required("id"))
    points = list(history.samples)
    topics: dict[str, list[list[int]]] = {}
    latest = points[-1]["topics"] if points else {}
    for topic in sorted(latest, key=lambda name: -latest[name])[:MAX_TOPICS]:
        topics[topic] = [[each["time"], each["topics"][topic]] for each in points if topic in each["topics"]]
    return {"points": [_point(each) for each in points], "topics": topics}


def _point(sample: Sample) -> dict[str, Any]:
    return {name: sample[name] for name in ("time", "lag", "committed", "end")}


async def lag_stream(context: ApiContext, request: ApiRequest) -> HttpServerResponse:
    history = await _history(context, request.required("id"))

    async def points() -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async for sample in history.follow():
            yield "lag", _point(sample)

    return event_stream(context, points())


async def _history(context: ApiContext, group_id: str) -> SampledHistory:
    session = context.session
    if session.lags is None:
        session.lags = SampledHistories(lambda name: _new_history(context, name), MAX_HISTORIES)
    history = await session.lags.of(group_id)
    history.look()
    return history


def _new_history(context: ApiContext, group_id: str) -> SampledHistory:
    async def take() -> Sample | None:
        admin = await context.access.admin()
        try:
            committed = await committed_offsets(admin, group_id, "")
        except KafkaError:
            committed = await committed_offsets(admin, group_id, "share")
        lags = await group_lags(context.access, committed)
        topics: dict[str, int] = {}
        for each in lags:
            if each.lag is not None:
                topics[each.partition.topic] = topics.get(each.partition.topic, 0) + each.lag
        known = [each for each in lags if each.lag is not None]
        largest = sorted(topics, key=lambda name: -topics[name])[:MAX_TOPICS]
        return {
            "time": context.now_ms(),
            "lag": total_lag(lags),
            "committed": sum(each.committed or 0 for each in known),
            "end": sum(each.end or 0 for each in known),
            "topics": {name: topics[name] for name in largest},
        }

    return SampledHistory(
        context.runtime.clock,
        take,
        interval_seconds=_INTERVAL_SECONDS,
        size=_POINTS,
        keep_seconds=_KEEP_SECONDS,
    )


# Records in delivery of a share group


async def list_records(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """What a share group has in delivery: how many records by state, the first of them by ranges, and the
    number of its dead letters.
    """
    group_id = request.required("id")
    admin = await context.access.admin()
    known = sorted(await admin.groups.share_offsets(group_id))[:MAX_PARTITIONS]
    page = await admin.groups.share_records(group_id, dict.fromkeys(known, 0), at_most=MAX_RANGES)
    if any(error.code is ErrorCode.UNSUPPORTED_VERSION for error in page.errors.values()):
        return {"isSupported": False}  # brokers of Apache Kafka do not say
    problems = [f"{at}: {error.message}" for at, error in page.errors.items()]
    problems += [f"Dead letters of {at} wait: {why}" for at, why in page.problems.items()]
    found: dict[str, Any] = {
        "isSupported": True,
        "held": sum(page.held.values()),
        "waiting": sum(page.waiting.values()),
        "dead": sum(page.dead.values()),
        "hasMore": bool(page.next),
        "records": [
            {
                **each.partition._asdict(),
                "first": each.first_offset,
                "last": each.last_offset,
                "count": each.size,
                "state": each.state,
                "deliveries": each.delivery_count,
                "memberId": each.member_id,
                "ageMs": each.age_ms,
                "leftMs": each.left_ms,
            }
            for each in page.records
        ],
        "problems": problems,
    }
    found["deadLetters"] = await _dead_letters(context, group_id, problems)
    return found


async def _dead_letters(context: ApiContext, group_id: str, problems: list[str]) -> dict[str, Any] | None:
    """The dead-letter topic of a group, and how many records it has; None if the group has none."""
    admin = await context.access.admin()
    try:
        configs = await admin.configs.describe(ResourceType.GROUP, group_id, keys=[_DEAD_LETTER_TOPIC])
        topic = configs[_DEAD_LETTER_TOPIC].value if _DEAD_LETTER_TOPIC in configs else None
        if not topic:
            return None
        info = await admin.topics.describe(topic)
        partitions = [TopicPartition(topic, each.partition) for each in info.partitions]
        starts = await end_offsets(context.access, partitions, OffsetSpec.EARLIEST)
        ends = await end_offsets(context.access, partitions)
        return {"topic": topic, "count": sum(ends[at] - starts[at] for at in starts.keys() & ends.keys())}
    except KafkaError as error:
        problems.append(error.message)
        return None


async def alter_records(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """Release, reject or skip records in delivery, as they were listed."""
    body = request.body()
    name = body.text("action").upper()
    if name not in ShareRecordsAction.__members__:
        raise bad_request("action has to be one of release, reject, skip")
    rows = body.raw("records")
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_RANGES:
        raise bad_request(f"records has to be a list of 1 to {MAX_RANGES}")
    chosen = []
    for row in map(JsonBody, rows):
        at = TopicPartition(row.text("topic"), row.integer("partition"))
        first, last = row.integer("first"), row.integer("last")
        chosen.append(ShareRecords(at, first, last, "", row.integer("deliveries")))
    admin = await context.access.admin()
    done = await admin.groups.alter_share_records(request.required("id"), ShareRecordsAction[name], chosen)
    return {
        "changed": sum(each for each in done.values() if isinstance(each, int)),
        "problems": [f"{at}: {each.message}" for at, each in done.items() if isinstance(each, KafkaError)],
    }


# Changes


async def reset_offsets(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """Plan a reset and, unless it is a dry run, apply exactly what the plan shows."""
    group_id = request.required("id")
    body = request.body()
    dry_run = body.raw("dryRun") is not False
    admin = await context.access.admin()
    info = await _known_group(context, group_id)
    refused = None if info is None else active_group_message(info)
    is_share = info is not None and info.type == "share"
    found = await committed_offsets(admin, group_id, "share" if is_share else "")
    committed = {each: at.offset for each, at in found.items()}
    wanted = await _targets(context, body, committed)
    if not wanted:
        raise bad_request("there is nothing to reset: the group has no offsets of these partitions")
    if len(wanted) > MAX_RESET:
        raise bad_request(f"a reset is of at most {MAX_RESET} partitions; choose topics")
    starts = await end_offsets(context.access, wanted, OffsetSpec.EARLIEST)
    ends = await end_offsets(context.access, wanted)
    items: list[dict[str, Any]] = []
    for each, target in sorted(wanted.items()):
        start, end = starts.get(each), ends.get(each)
        known = start is not None and end is not None
        before = committed.get(each)
        lag_before = PartitionLag(each, found.get(each), end).lag
        after = min(max(target, start), end) if start is not None and end is not None else None
        items.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "before": before,
                "after": after,
                "start": start,
                "end": end,
                "lagBefore": lag_before,
                "lagAfter": end - after if end is not None and after is not None else None,
                "error": None if known else "its offsets cannot be read",
            }
        )
    applied = False
    if not dry_run:
        if refused is not None:
            raise ConsoleError(409, ErrorCode.NON_EMPTY_GROUP.name, refused)
        changes = {
            TopicPartition(each["topic"], each["partition"]): each["after"]
            for each in items
            if each["after"] is not None
        }
        alter = admin.groups.alter_share_offsets if is_share else admin.groups.alter_offsets
        results = await alter(group_id, changes)
        for item in items:
            error = results.get(TopicPartition(item["topic"], item["partition"]))
            item["error"] = item["error"] if error is None else error.message
        applied = True
    return {
        "dryRun": dry_run,
        "applied": applied,
        "items": items,
        "lagBefore": _sum(items, "lagBefore"),
        "lagAfter": _sum(items, "lagAfter"),
        "refused": refused,
    }


def _sum(items: list[dict[str, Any]], name: str) -> int | None:
    known = [each[name] for each in items if each[name] is not None]
    return sum(known) if known else None


async def _known_group(context: ApiContext, group_id: str) -> GroupInfo | None:
    admin = await context.access.admin()
    try:
        return await admin.groups.describe(group_id)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


async def _targets(
    context: ApiContext, body: JsonBody, committed: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offset that each partition is to have, before it is moved into the log."""
    to = body.text("to")
    if to == "offsets":
        return {
            TopicPartition(topic, partition): offset
            for topic, offsets in body.mapping("offsets").items()
            for partition, offset in offsets_by_partition(JsonBody({"of": offsets}), "of", low=0).items()
        }
    chosen = await _chosen(context, body, committed)
    if to == "beginning":
        return await end_offsets(context.access, chosen, OffsetSpec.EARLIEST)
    if to == "end":
        return await end_offsets(context.access, chosen)
    if to == "offset":
        offset = body.integer("offset")
        return dict.fromkeys(chosen, offset)
    if to == "time":
        time = body.integer("time")
        ends = await end_offsets(context.access, chosen)
        found = await end_offsets(context.access, chosen, time)
        return {each: at if at >= 0 else ends[each] for each, at in found.items() if each in ends}
    if to in ("shift", "current"):
        shift = body.integer("shift", low=-(2**62), high=2**62) if to == "shift" else 0
        return {each: max(committed[each] + shift, 0) for each in chosen if each in committed}
    raise bad_request("to has to be one of beginning, end, offset, time, shift, current, offsets")


async def _chosen(
    context: ApiContext, body: JsonBody, committed: dict[TopicPartition, int]
) -> list[TopicPartition]:
    topics = body.optional_texts("topics")
    if topics is None:
        return sorted(committed)
    numbers = body.raw("partitions")
    if numbers is not None and (
        not isinstance(numbers, list) or len(topics) != 1 or not all(type(each) is int for each in numbers)
    ):
        raise bad_request("partitions has to be a list of numbers, of one topic")
    known = {topic.name: topic for topic in await context.access.topics()}
    chosen: list[TopicPartition] = []
    for name in topics:
        if name not in known:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        there = [each.partition for each in known[name].partitions]
        if numbers is not None and (missing := [each for each in numbers if each not in there]):
            raise bad_request(f"topic {name} has no partition {missing[0]}")
        chosen += [TopicPartition(name, each) for each in (there if numbers is None else numbers)]
    return chosen


async def delete_offsets(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    group_id, body = request.required("id"), request.body()
    topic, numbers = body.text("topic"), body.raw("partitions")
    admin = await context.access.admin()
    info = await _known_group(context, group_id)
    if info is not None and info.type == "share":
        if numbers is not None:
            raise bad_request("the offsets of a share group are deleted by topic: partitions has to be null")
        if (refused := active_group_message(info)) is not None:
            raise ConsoleError(409, ErrorCode.NON_EMPTY_GROUP.name, refused)
        deleted = await admin.groups.delete_share_offsets(group_id, [topic])
        return {"problems": [error.message for error in deleted.values() if error is not None]}
    committed = await admin.groups.offsets(group_id)
    chosen = [
        each for each in committed if each.topic == topic and (numbers is None or each.partition in numbers)
    ]
    if not chosen:
        raise bad_request(f"group {group_id} has no offsets of {topic}")
    results = await admin.groups.delete_offsets(group_id, chosen)
    return {"problems": [error.message for error in results.values() if error is not None]}


async def remove_members(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    members = request.body().texts("members")
    if not members:
        raise bad_request("members has no member")
    admin = await context.access.admin()
    results = await admin.groups.remove_members(
        request.required("id"), members, reason="removed in the console"
    )
    return {"problems": [error.message for error in results.values() if error is not None]}


async def delete_group(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    await (await context.access.admin()).groups.delete(request.required("id"))
    return {}


ROUTES: Final = (
    ConsoleRoute("GET", "/api/groups", list_groups),
    ConsoleRoute("GET", "/api/group", describe_group),
    ConsoleRoute("DELETE", "/api/group", delete_group),
    ConsoleRoute("GET", "/api/group/lag", lag_history),
    ConsoleRoute("GET", "/api/group/stream", lag_stream),
    ConsoleRoute("GET", "/api/group/records", list_records),
    ConsoleRoute("POST", "/api/group/records", alter_records),
    ConsoleRoute("POST", "/api/group/reset", reset_offsets),
    ConsoleRoute("POST", "/api/group/delete-offsets", delete_offsets),
    ConsoleRoute("POST", "/api/group/remove-members", remove_members),
)
