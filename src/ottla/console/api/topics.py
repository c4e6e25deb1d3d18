"""Topics: the list, one topic, and what is done with topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from ottla.client.admin.offsets import OffsetSpec
from ottla.client.admin.partitions import ElectionType
from ottla.client.cluster_metadata import PartitionInfo, TopicInfo
from ottla.console.api_request import ApiRequest, JsonBody, bad_request, page_of
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.console.group_lag import committed_offsets, end_offsets, group_lags, total_lag
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition, uuid_text

MAX_PARTITIONS: Final = 500
# How many partitions of a page are asked for their offsets and sizes.
MAX_COUNTED_PARTITIONS: Final = 20_000
MAX_GROUPS: Final = 200
_GROUPS_SECONDS: Final = 10.0
_GROUPS_AT_ONCE: Final = 20
_RATE_NS: Final = 60 * 1_000_000_000
_MAX_RATES: Final = 20_000


def is_under_replicated(partition: PartitionInfo) -> bool:
    return len(partition.isr) < len(partition.replicas)


def is_offline(partition: PartitionInfo) -> bool:
    return partition.leader < 0


def count(topic: TopicInfo, wanted: Any) -> int:
    return sum(1 for each in topic.partitions if wanted(each))


async def list_topics(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    internal, health = request.flag("internal"), request.choice("health", ("", "underReplicated", "offline"))
    topics = [
        topic
        for topic in await context.access.topics()
        if (internal or not topic.is_internal)
        and (health != "underReplicated" or count(topic, is_under_replicated))
        and (health != "offline" or count(topic, is_offline))
    ]
    problems: list[str] = []
    messages: dict[str, int] = {}
    sizes: dict[str, int] = {}
    sort = request.text("sort")
    if sort == "messages":
        messages = await message_counts(context, topics, problems)
    elif sort == "size":
        sizes = await topic_sizes(context, topics, problems)
    chosen, page = page_of(
        request,
        topics,
        name=lambda topic: topic.name,
        sorts={
            "name": lambda topic: topic.name,
            "partitions": lambda topic: len(topic.partitions),
            "replicationFactor": replication_factor,
            "messages": lambda topic: messages.get(topic.name),
            "size": lambda topic: sizes.get(topic.name),
            "underReplicated": lambda topic: count(topic, is_under_replicated),
        },
    )
    if sort != "messages":
        messages = await message_counts(context, chosen, problems)
    if sort != "size":
        sizes = await topic_sizes(context, chosen, problems)
    page["items"] = [
        {
            "name": topic.name,
            "internal": topic.is_internal,
            "topicId": None if topic.topic_id is None else uuid_text(topic.topic_id),
            "partitions": len(topic.partitions),
            "replicationFactor": replication_factor(topic),
            "underReplicated": count(topic, is_under_replicated),
            "offline": count(topic, is_offline),
            "messages": messages.get(topic.name),
            "sizeBytes": sizes.get(topic.name),
            "messagesPerSecond": message_rate(context, topic.name),
            "error": topic.error.name if topic.error else None,
        }
        for topic in chosen
    ]
    page["problems"] = problems
    return page


def replication_factor(topic: TopicInfo) -> int | None:
    return max((len(each.replicas) for each in topic.partitions), default=None)


async def message_counts(
    context: ApiContext, topics: Iterable[TopicInfo], problems: list[str]
) -> dict[str, int]:
    """The end minus the start of all partitions of each topic. The rates of topics come from the ends."""
    partitions = led_partitions(topics, problems)
    try:
        first = await end_offsets(context.access, partitions, OffsetSpec.EARLIEST)
        ends = await end_offsets(context.access, partitions)
    except KafkaError as error:
        problems.append(f"offsets: {error.message}")
        return {}
    totals: dict[str, int] = {}
    found: dict[str, int] = {}
    missing: set[str] = set()
    for each in partitions:
        if each not in first or each not in ends:
            missing.add(each.topic)
            continue
        found[each.topic] = found.get(each.topic, 0) + max(ends[each] - first[each], 0)
        totals[each.topic] = totals.get(each.topic, 0) + ends[each]
    for topic in missing:
        found.pop(topic, None)
        totals.pop(topic, None)
    note_totals(context, totals)
    return found


def led_partitions(topics: Iterable[TopicInfo], problems: list[str]) -> list[TopicPartition]:
    partitions = [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if not is_offline(each)
    ]
    if len(partitions) > MAX_COUNTED_PARTITIONS:
        problems.append(
            f"only the first {MAX_COUNTED_PARTITIONS} of {len(partitions)} partitions were counted"
        )
        del partitions[MAX_COUNTED_PARTITIONS:]
    return partitions


def note_totals(context: ApiContext, totals: dict[str, int]) -> None:
    """Keep the ends of topics for their rates: the last two looks, of a bounded number of topics."""
    now = context.runtime.clock.monotonic_ns()
    rates = context.session.rates
    for topic, total in totals.items():
        known = rates.get(topic)
        if known is None:
            rates[topic] = [(now, total), None]
        elif now - known[0][0] > 1_000_000_000:
            rates[topic] = [(now, total), known[0]]
    while len(rates) > _MAX_RATES:
        del rates[next(iter(rates))]


def message_rate(context: ApiContext, topic: str) -> float | None:
    """Messages per second between the last two looks at a topic; None if they are too long ago."""
    known = context.session.rates.get(topic)
    if known is None or known[1] is None:
        return None
    (last_ns, last), (before_ns, before) = known
    now = context.runtime.clock.monotonic_ns()
    if now - before_ns > _RATE_NS or last < before:
        return None
    return float(round((last - before) / ((last_ns - before_ns) / 1e9), 2))


async def topic_sizes(
    context: ApiContext, topics: Iterable[TopicInfo], problems: list[str]
) -> dict[str, int]:
    """The bytes of the leaders' replicas of each topic."""
    topics = list(topics)
    sizes = await partition_sizes(context, topics, problems)
    found: dict[str, int] = {}
    for partition, size in sizes.items():
        found[partition.topic] = found.get(partition.topic, 0) + size
    return found


async def partition_sizes(
    context: ApiContext, topics: Iterable[TopicInfo], problems: list[str]
) -> dict[TopicPartition, int]:
    leaders: dict[TopicPartition, int] = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in topics
        for each in topic.partitions
        if not is_offline(each)
    }
    by_broker: dict[int, list[TopicPartition]] = {}
    for partition, leader in list(leaders.items())[:MAX_COUNTED_PARTITIONS]:
        by_broker.setdefault(leader, []).append(partition)
    admin = await context.access.listing()
    answers = await asyncio.gather(
        *(
            admin.log_dirs.describe(brokers=[broker], partitions=partitions)
            for broker, partitions in by_broker.items()
        ),
        return_exceptions=True,
    )
    sizes: dict[TopicPartition, int] = {}
    for broker, answer in zip(by_broker, answers, strict=True):
        if isinstance(answer, KafkaError):
            problems.append(f"sizes on broker {broker}: {answer.message}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            for directory in answer:
                for partition, replica in directory.replicas.items():
                    if not replica.is_future:
                        sizes[partition] = replica.size_bytes
    return sizes


async def create_topic(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    body = request.body()
    name = body.text("name")
    admin = await context.access.admin()
    await admin.topics.create(
        name,
        partitions=body.integer("partitions", -1, low=-1, high=100_000),
        replication_factor=body.integer("replicationFactor", -1, low=-1, high=1_000),
        configs=body.text_mapping("configs"),
        validate_only=body.flag("validateOnly"),
    )
    context.access.forget_topics()
    return {"name": name}


async def describe_topic(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    name = request.params["topic"]
    first = request.integer("from", 0, high=1_000_000)
    admin = await context.access.admin(name)
    info = await admin.topics.describe(name)
    problems: list[str] = []
    shown = info.partitions[first : first + MAX_PARTITIONS]
    part = TopicInfo(info.name, info.topic_id, info.is_internal, shown)
    led = [TopicPartition(name, each.partition) for each in shown if not is_offline(each)]
    starts, ends, stable = await asyncio.gather(
        _offsets(context, name, led, OffsetSpec.EARLIEST, problems),
        _offsets(context, name, led, OffsetSpec.LATEST, problems),
        _offsets(context, name, led, OffsetSpec.LATEST, problems, committed=True),
    )
    sizes, settings, moves, operations = await asyncio.gather(
        partition_sizes(context, [part], problems),
        _settings(context, name, problems),
        _reassignments(context, led, problems),
        _operations(context, name),
    )
    complete = first == 0 and len(shown) == len(info.partitions) and len(ends) == len(shown)
    messages = sum(ends[each] - starts.get(each, 0) for each in ends) if complete else None
    if complete:
        note_totals(context, {name: sum(ends.values())})

    def setting(key: str) -> int | None:
        try:
            return int(settings[key])
        except (KeyError, ValueError):
            return None

    return {
        "name": name,
        "internal": info.is_internal,
        "topicId": None if info.topic_id is None else uuid_text(info.topic_id),
        "replicationFactor": replication_factor(info),
        "messages": messages,
        "sizeBytes": sum(sizes.values()) if complete and len(sizes) == len(shown) else None,
        "messagesPerSecond": message_rate(context, name),
        "cleanupPolicy": settings.get("cleanup.policy"),
        "retentionMs": setting("retention.ms"),
        "retentionBytes": setting("retention.bytes"),
        "minInSyncReplicas": setting("min.insync.replicas"),
        "partitions": [
            {
                "partition": each.partition,
                "leader": None if is_offline(each) else each.leader,
                "leaderEpoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "offline": list(each.offline),
                "startOffset": starts.get(each.partition),
                "endOffset": ends.get(each.partition),
                "lastStableOffset": stable.get(each.partition),
                "sizeBytes": sizes.get(TopicPartition(name, each.partition)),
                "error": each.error.name if each.error else None,
                "reassigning": moves.get(each.partition),
            }
            for each in shown
        ],
        "partitionCount": len(info.partitions),
        "partitionsFrom": first,
        "operations": operations,
        "schema": {part: _schema(context, name, part) for part in ("key", "value")},
        "problems": problems,
    }


def _schema(context: ApiContext, topic: str, part: str) -> dict[str, str] | None:
    found = context.services.decoder.schemas.of(topic, part)
    return None if found is None else {"format": found.format.value, "name": found.name}


async def _offsets(
    context: ApiContext,
    topic: str,
    partitions: list[TopicPartition],
    spec: OffsetSpec,
    problems: list[str],
    *,
    committed: bool = False,
) -> dict[int, int]:
    admin = await context.access.admin(topic)
    found = await admin.offsets.list(dict.fromkeys(partitions, int(spec)), read_committed=committed)
    failed = [error for error in found.values() if isinstance(error, KafkaError)]
    if failed:
        problems.append(failed[0].message)
    return {each.partition: at.offset for each, at in found.items() if not isinstance(at, KafkaError)}


async def _settings(context: ApiContext, topic: str, problems: list[str]) -> dict[str, str]:
    from ottla.client.admin.configs import ResourceType

    try:
        found = await (await context.access.admin(topic)).configs.describe(
            ResourceType.TOPIC,
            topic,
            keys=["cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas"],
        )
    except KafkaError as error:
        problems.append(error.message)
        return {}
    return {name: each.value for name, each in found.items() if each.value is not None}


async def _reassignments(
    context: ApiContext, partitions: list[TopicPartition], problems: list[str]
) -> dict[int, dict[str, list[int]]]:
    if not partitions:
        return {}
    try:
        found = await (await context.access.admin()).partitions.reassignments(partitions)
    except KafkaError as error:
        problems.append(error.message)
        return {}
    return {
        each.partition: {"adding": list(move.adding), "removing": list(move.removing)}
        for each, move in found.items()
    }


async def _operations(context: ApiContext, topic: str) -> list[str] | None:
    try:
        found = await (await context.access.admin(topic)).topics.authorized_operations(topic)
    except KafkaError:
        return None
    return sorted(each.name for each in found)


async def delete_topic(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    await (await context.access.admin()).topics.delete(request.params["topic"])
    context.access.forget_topics()
    return {}


async def add_partitions(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    body = request.body()
    await (await context.access.admin()).topics.add_partitions(
        request.params["topic"],
        body.integer("total", low=1, high=100_000),
        validate_only=body.flag("validateOnly"),
    )
    context.access.forget_topics()
    return {}


async def delete_records(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    topic = request.params["topic"]
    wanted = offsets_by_partition(request.body(), "offsets", low=-1)
    if not wanted:
        raise bad_request("offsets has no partition")
    before = {TopicPartition(topic, partition): offset for partition, offset in wanted.items()}
    found = await (await context.access.admin(topic)).offsets.delete_records(before)
    return {
        "offsets": {str(each.partition): at for each, at in found.items() if not isinstance(at, KafkaError)},
        "problems": [at.message for at in found.values() if isinstance(at, KafkaError)],
    }


def offsets_by_partition(body: JsonBody, name: str, *, low: int) -> dict[int, int]:
    """An object of offsets by partitions, as `{"0": 17}`."""
    found: dict[int, int] = {}
    for partition, offset in body.mapping(name).items():
        if not partition.isdecimal() or len(partition) > 9:
            raise bad_request(f"{name} has {partition[:20]!r}, which is no partition")
        if not isinstance(offset, int) or isinstance(offset, bool) or not low <= offset < 2**63:
            raise bad_request(f"{name} has no offset for partition {partition}")
        found[int(partition)] = offset
    return found


async def elect_leaders(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    topic = request.params["topic"]
    admin = await context.access.admin(topic)
    info = await admin.topics.describe(topic)
    partitions = [TopicPartition(topic, each.partition) for each in info.partitions]
    results = await admin.partitions.elect_leaders(ElectionType.PREFERRED, partitions)
    return {
        "problems": [
            error.message
            for error in results.values()
            if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
        ]
    }


async def topic_groups(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    """The groups that read a topic. No request finds them: the offsets of all groups are read, in a bounded
    time.
    """
    topic = request.params["topic"]
    admin = await context.access.admin(topic)
    await admin.topics.describe(topic)
    groups = await admin.groups.list()
    problems: list[str] = []
    items: list[dict[str, Any]] = []
    looked = 0
    places = asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def look(group_id: str, type: str, state: str) -> None:
        async with places:
            try:
                committed = await committed_offsets(admin, group_id, type)
                mine = {each: at for each, at in committed.items() if each.topic == topic}
                members: int | None = 0
                if state != "Empty":
                    info = await admin.groups.describe(group_id)
                    reading = [
                        member
                        for member in info.members
                        if topic in member.subscription or any(p.topic == topic for p in member.assignment)
                    ]
                    members = len(reading)
                    if not mine and not reading:
                        return
                elif not mine:
                    return
                lags = await group_lags(context.access, mine)
                items.append(
                    {
                        "id": group_id,
                        "type": type or "classic",
                        "state": state,
                        "lag": total_lag(lags),
                        "members": members,
                    }
                )
            except KafkaError as error:
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND and len(problems) < 10:
                    problems.append(error.message)

    tasks = [asyncio.ensure_future(look(each.group_id, each.type.lower(), each.state)) for each in groups]
    if tasks:
        done, pending = await asyncio.wait(tasks, timeout=_GROUPS_SECONDS)
        looked = len(done)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    items.sort(key=lambda each: (-(each["lag"] or 0), each["id"]))
    return {"items": items[:MAX_GROUPS], "looked": looked, "total": len(groups), "problems": problems}


ROUTES: Final = (
    ConsoleRoute("GET", "/api/topics", list_topics),
    ConsoleRoute("POST", "/api/topics", create_topic),
    ConsoleRoute("GET", "/api/topics/{topic}", describe_topic),
    ConsoleRoute("DELETE", "/api/topics/{topic}", delete_topic),
    ConsoleRoute("POST", "/api/topics/{topic}/partitions", add_partitions),
    ConsoleRoute("POST", "/api/topics/{topic}/delete-records", delete_records),
    ConsoleRoute("POST", "/api/topics/{topic}/elect-leaders", elect_leaders),
    ConsoleRoute("GET", "/api/topics/{topic}/groups", topic_groups),
)
