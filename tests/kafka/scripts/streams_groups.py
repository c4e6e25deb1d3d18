"""Streams groups: topologies, tasks of one and two members, internal topics, offsets, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.protocol.messages import incremental_alter_configs as configs
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kafka.scripts.groups import MADE_UP, commit, fetch, find, join
from tests.kafka.scripts.kit import (
    GROUP_RESOURCE,
    SET,
    TIMEOUT_MS,
    configure_group,
    make_topic,
    new_producer,
    script,
)
from tests.support.differential import Session


def stateless(topic: str, epoch: int = 0) -> Topology:
    return Topology(epoch=epoch, subtopologies=[Subtopology(subtopology_id="0", source_topics=[topic])])


def internal(name: str, partitions: int = 0, **settings: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        topic_configs=[KeyValue(key=key, value=value) for key, value in settings.items()],
    )


def beat(group: str, member: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatRequest:
    """A heartbeat; with a topology it joins, owning nothing."""
    joins = fields.get("topology") is not None
    defaults: dict[str, Any] = (
        {
            "rebalance_timeout_ms": 60_000,
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            "process_id": f"process-{member}",
            "client_tags": [],
        }
        if joins
        else {}
    )
    return StreamsGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **{**defaults, **fields}
    )


def owned(*partitions: int, subtopology: str = "0") -> dict[str, Any]:
    tasks = [TaskIds(subtopology_id=subtopology, partitions=list(partitions))] if partitions else []
    return {"active_tasks": tasks, "standby_tasks": [], "warmup_tasks": []}


def set_up(session: Session, group: str, **settings: str) -> None:
    """Wait for the group's coordinator; the group's first assignment does not wait for more members."""
    find(session, group)
    wanted = {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0", **settings}
    configure_group(session, group, wanted)


def by_member(answer: Any) -> None:
    for group in answer.groups:
        group.members.sort(key=lambda member: member.member_id)
        for member in group.members:
            member.client_host = ""


def describe(session: Session, label: str, *groups: str) -> None:
    request = StreamsGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=True)
    session.ask(label, request, 0, edit=by_member)


@script
def streams_groups_that_are_refused(session: Session) -> None:
    topic = "streams-refused-lines"
    make_topic(session, topic, partitions=2)
    group = "streams-refused"
    set_up(session, group)

    def ask(label: str, request: StreamsGroupHeartbeatRequest) -> None:
        session.ask(label, request, 0)

    ask("no group", beat(group, "a", 1))
    ask("leave no group", beat(group, "a", -1))
    ask("empty group", beat("", "a", 0, topology=stateless(topic)))
    ask("empty member", beat(group, "", 0, topology=stateless(topic)))
    ask("blank member", beat(group, " ", 0, topology=stateless(topic)))
    ask("empty rack", beat(group, "a", 0, topology=stateless(topic), rack_id=""))
    ask("instance", beat(group, "a", 0, topology=stateless(topic), instance_id="i"))
    ask("empty instance", beat(group, "a", 0, topology=stateless(topic), instance_id=""))
    ask("no topology", beat(group, "a", 0, rebalance_timeout_ms=5, **owned()))
    ask("no rebalance timeout", beat(group, "a", 0, topology=stateless(topic), rebalance_timeout_ms=-1))
    ask("owns tasks", beat(group, "a", 0, topology=stateless(topic), **owned(0)))
    ask("owns null", beat(group, "a", 0, topology=stateless(topic), standby_tasks=None))
    ask("warm-up tasks", beat(group, "a", 0, topology=stateless(topic), warmup_tasks=[TaskIds()]))
    ask("offsets", beat(group, "a", 0, topology=stateless(topic), task_offsets=[TaskOffset()]))
    ask("end offsets", beat(group, "a", 0, topology=stateless(topic), task_end_offsets=[TaskOffset()]))
    ask("topology later", beat(group, "a", 3, topology=stateless(topic)))
    ask("one kind of tasks", beat(group, "a", 3, active_tasks=[]))
    ask("epoch -2", beat(group, "a", -2))
    ask("epoch -3", beat(group, "a", -3))

    def one(**fields: Any) -> Topology:
        return Topology(subtopologies=[Subtopology(subtopology_id="0", **fields)])

    for label, topology in {
        "regex": one(source_topic_regex=["s.*"]),
        "counted changelog": one(source_topics=[topic], state_changelog_topics=[internal("s", 2)]),
        "coordinator's topic": one(source_topics=["__consumer_offsets"]),
        "invalid topic": one(source_topics=["a/b"]),
        "loop": one(repartition_sink_topics=["r"], repartition_source_topics=[internal("r")]),
        "no source": one(),
        "never written": one(repartition_source_topics=[internal("r")]),
    }.items():
        ask(label, beat(group, "a", 0, topology=topology))
    describe(session, "describe none", group, "")


@script
def members_of_a_streams_group(session: Session) -> None:
    """Two members share the tasks of one subtopology; the one that was first gives up half."""
    topic = "streams-pair-lines"
    topic_id = make_topic(session, topic, partitions=2)
    group = "streams-pair"
    set_up(session, group)

    def ask(label: str, member: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatResponse:
        answer: StreamsGroupHeartbeatResponse = session.ask(label, beat(group, member, epoch, **fields), 0)
        return answer

    ask("a joins", "a", 0, topology=stateless(topic), client_tags=[KeyValue(key="zone", value="x")])
    describe(session, "one member", group)
    ask("a again", "a", 2)
    ask("a owns its tasks", "a", 2, **owned(0, 1))
    ask("a joins again", "a", 0, topology=stateless(topic), client_tags=[KeyValue(key="zone", value="x")])
    ask("epoch too old", "a", 1)
    ask("epoch too new", "a", 9)
    ask("unknown member", "z", 2)
    ask("unknown subtopology", "a", 2, **owned(0, subtopology="7"))
    ask("unknown task", "a", 2, **owned(2))
    ask("other topology", "b", 0, topology=stateless("streams-other"))
    ask("newer topology", "b", 0, topology=stateless(topic, epoch=1))
    ask("b joins", "b", 0, topology=stateless(topic), user_endpoint=Endpoint(host="here", port=7))
    describe(session, "b waits", group)
    ask("b waits", "b", 3, endpoint_information_epoch=1)
    revoking = ask("a revokes", "a", 2)
    kept = revoking.active_tasks[0].partitions if revoking.active_tasks else []
    ask("a still owns", "a", 2, **owned(0, 1))
    describe(session, "a revokes", group)
    ask("a has revoked", "a", 2, **owned(*kept))
    ask("b gets its task", "b", 3, endpoint_information_epoch=1)
    ask("b knows the endpoints", "b", 3, endpoint_information_epoch=2)
    describe(session, "two members", group)
    for label, member, epoch in (("now", "a", 3), ("before", "a", 2), ("too old", "a", 1), ("later", "a", 9)):
        fields = {"member_id": member, "generation_id_or_member_epoch": epoch}
        session.ask(f"commit {label}", commit(group, topic, topic_id, **fields), 9)
        where = fetch(group, 9, topic, topic_id, member_id=member, member_epoch=epoch)
        session.ask(f"fetch {label}", where, 9)
    session.ask("commit from outside", commit(group, topic, topic_id), 9)
    old = commit(group, topic, topic_id, member_id="a", generation_id_or_member_epoch=3)
    session.ask("commit in an old version", old, 8)
    deletion = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        ],
    )
    session.ask("delete offsets", deletion, 0)
    session.ask("classic join", join(group, ""), 9, hide=MADE_UP)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="c",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    session.ask("consumer joins", consumer, 1)
    session.ask("describe as classic", DescribeGroupsRequest(groups=[group]), 6)
    session.ask("delete with members", DeleteGroupsRequest(groups_names=[group]), 2)
    session.ask("list", ListGroupsRequest(types_filter=["streams"]), 5, edit=_only(group))
    ask("b leaves", "b", -1)
    ask("b is gone", "b", 3)
    ask("a gets all", "a", 3)
    ask("a asks for the end", "a", 4, shutdown_application=True)
    ask("a sees the request", "a", 4)
    ask("a leaves", "a", -1)
    describe(session, "empty", group)
    session.ask("delete offsets of the empty group", deletion, 0)
    session.ask("list empty", ListGroupsRequest(types_filter=["streams"]), 5, edit=_only(group))
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    describe(session, "deleted", group)


def _only(group: str) -> Callable[[Any], None]:
    def edit(answer: Any) -> None:
        answer.groups = [each for each in answer.groups if each.group_id == group]

    return edit


def _list(session: Session, request: ListGroupsRequest, group: str, state: str) -> None:
    """List a group in a state. Apache Kafka lists what is committed, a moment after it has answered."""

    def is_listed(answer: ListGroupsResponse) -> bool:
        return any((each.group_id, each.group_state) == (group, state) for each in answer.groups)

    session.note("list", 5, session.until(request, ListGroupsResponse, is_listed), edit=_only(group))


@script
def transactions_of_a_streams_group(session: Session) -> None:
    topic = "streams-transactions-lines"
    make_topic(session, topic, partitions=2)
    group = "streams-transactions"
    set_up(session, group)
    session.ask("a joins", beat(group, "a", 0, topology=stateless(topic)), 0)
    producer = new_producer(session)
    for label, member, epoch in (
        ("unknown member", "z", 2),
        ("too old", "a", 1),
        ("later", "a", 9),
    ):
        request = TxnOffsetCommitRequest(
            transactional_id="streams-transactions",
            group_id=group,
            producer_id=producer,
            producer_epoch=0,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
                )
            ],
        )
        session.ask(f"commit {label}", request, 3)


@script
def topics_of_a_streams_group(session: Session) -> None:
    """Missing source topics, wrong partitions, and internal topics that the broker creates."""
    topic = "streams-two"
    make_topic(session, topic, partitions=2)
    make_topic(session, "streams-three", partitions=3)
    group = "streams-missing"
    set_up(session, group)
    session.ask("missing source", beat(group, "a", 0, topology=stateless("streams-none")), 0)
    session.ask("still missing", beat(group, "a", 2), 0)
    describe(session, "missing source", group)
    group = "streams-partitions"
    set_up(session, group)
    together = Topology(
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=[topic, "streams-three"],
                copartition_groups=[CopartitionGroup(source_topics=[0, 1])],
            )
        ]
    )
    session.ask("not copartitioned", beat(group, "a", 0, topology=together), 0)
    group = "streams-internal"
    set_up(session, group)
    counting = Topology(
        subtopologies=[
            Subtopology(
                subtopology_id="0", source_topics=["streams-three"], repartition_sink_topics=["streams-r"]
            ),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[internal("streams-r", **{"cleanup.policy": "delete"})],
                state_changelog_topics=[internal("streams-s", **{"cleanup.policy": "compact"})],
                copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
            ),
        ]
    )
    first = session.ask(
        "missing internal", beat(group, "a", 0, topology=counting), 0, hide=("status_detail",)
    )
    describe(session, "missing internal", group)
    epoch = first.member_epoch
    session.until(
        StreamsGroupDescribeRequest(group_ids=[group]),
        StreamsGroupDescribeResponse,
        lambda answer: _beaten(session, group, epoch) and answer.groups[0].group_state == "Stable",
    )
    describe(session, "ready", group)


def _beaten(session: Session, group: str, epoch: int) -> bool:
    """Send the member's heartbeat, in the epoch that it has reached."""
    described = session.get(StreamsGroupDescribeRequest(group_ids=[group]), StreamsGroupDescribeResponse)
    now = max(epoch, *(member.member_epoch for member in described.groups[0].members))
    session.get(beat(group, "a", now), StreamsGroupHeartbeatResponse)
    return True


@script
def the_first_assignment_of_a_streams_group(session: Session) -> None:
    """It waits for more members by default; here so long that a slow run sees nothing else."""
    topic = "streams-delayed-lines"
    make_topic(session, topic, partitions=2)
    group, setting = "streams-delayed", "streams.initial.rebalance.delay.ms"
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[setting]
    )
    session.ask("the default", DescribeConfigsRequest(resources=[resource]))
    set_up(session, group, **{setting: "120000"})
    session.ask("a joins", beat(group, "a", 0, topology=stateless(topic)), 0)
    session.ask("b joins", beat(group, "b", 0, topology=stateless(topic)), 0)
    session.ask("a waits", beat(group, "a", 1), 0)
    describe(session, "delayed", group)


@script
def standby_tasks_of_a_streams_group(session: Session) -> None:
    topic = "streams-standby-lines"
    make_topic(session, topic, partitions=2)
    make_topic(session, "streams-store", partitions=2)
    group = "streams-standby"
    set_up(session, group, **{"streams.num.standby.replicas": "1"})
    stateful = Topology(
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=[topic],
                state_changelog_topics=[internal("streams-store", **{"cleanup.policy": "compact"})],
            )
        ]
    )
    session.ask("a joins", beat(group, "a", 0, topology=stateful), 0)
    session.ask("a thread of a joins", beat(group, "a2", 0, topology=stateful, process_id="process-a"), 0)
    session.ask("b joins", beat(group, "b", 0, topology=stateful), 0)

    def by_count(answer: Any) -> None:
        """Ties are broken by the order of a hash table in Kafka: only how many tasks each has is compared."""
        by_member(answer)
        for member in answer.groups[0].members:
            for assignment in (member.assignment, member.target_assignment):
                for tasks in (assignment.active_tasks, assignment.standby_tasks):
                    for each in tasks:
                        each.partitions = [len(each.partitions)]

    request = StreamsGroupDescribeRequest(group_ids=[group])
    session.ask("three members", request, 0, edit=by_count)


@script
def topologies_of_a_streams_group(session: Session) -> None:
    """A member with an older topology, and other topologies before and after the group was empty."""
    topic = "streams-topologies-lines"
    make_topic(session, topic, partitions=2)
    make_topic(session, f"{topic}-2", partitions=1)
    group = "streams-topologies"
    set_up(session, group)
    session.ask("a joins", beat(group, "a", 0, topology=stateless(topic, epoch=3)), 0)
    session.ask("b is behind", beat(group, "b", 0, topology=stateless(topic, epoch=1)), 0)
    session.ask("b is still behind", beat(group, "b", 3), 0)
    session.ask("c has another topology", beat(group, "c", 0, topology=stateless(f"{topic}-2", epoch=3)), 0)
    session.ask("d has a newer topology", beat(group, "d", 0, topology=stateless(topic, epoch=4)), 0)
    describe(session, "with b", group)
    for member in "ab":
        session.ask(f"{member} leaves", beat(group, member, -1), 0)
    describe(session, "empty", group)
    session.ask("another topology", beat(group, "c", 0, topology=stateless(f"{topic}-2", epoch=3)), 0)
    session.ask("a newer topology", beat(group, "c", 0, topology=stateless(f"{topic}-2", epoch=4)), 0)
    session.ask("an older topology", beat(group, "c", 0, topology=stateless(f"{topic}-2", epoch=1)), 0)
    session.ask("the same topology", beat(group, "d", 0, topology=stateless(topic, epoch=3)), 0)
    describe(session, "again", group)


@script
def topics_that_change_under_a_streams_group(session: Session) -> None:
    topic = "streams-change-lines"
    make_topic(session, topic, partitions=1)
    group = "streams-change"
    set_up(session, group)
    joined = session.ask("a joins", beat(group, "a", 0, topology=stateless(topic)), 0)
    epoch = joined.member_epoch

    def await_change(label: str) -> None:
        """Send heartbeats until the broker has seen the change, which shows in the epoch."""
        nonlocal epoch
        answer = session.until(
            beat(group, "a", epoch), StreamsGroupHeartbeatResponse, lambda each: each.member_epoch > epoch
        )
        epoch = answer.member_epoch
        session.note(label, 0, answer)
        describe(session, label, group)

    grown = CreatePartitionsTopic(name=topic, count=3, assignments=None)
    session.get(CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS), CreatePartitionsResponse)
    await_change("more partitions")
    state = DeleteTopicState(name=topic)
    session.get(DeleteTopicsRequest(topics=[state], timeout_ms=TIMEOUT_MS), DeleteTopicsResponse)
    # The tasks are revoked first, in the epoch that the member has.
    revoked = session.until(
        beat(group, "a", epoch), StreamsGroupHeartbeatResponse, lambda each: each.active_tasks is not None
    )
    session.note("deleted", 0, revoked)
    describe(session, "deleted", group)
    released = session.ask("released", beat(group, "a", epoch, **owned()), 0)
    epoch = released.member_epoch
    _list(session, ListGroupsRequest(states_filter=["not_ready"]), group, "NotReady")
    make_topic(session, topic, partitions=2)
    await_change("created again")


def _by_endpoint(answer: Any) -> None:
    endpoints = answer.partitions_by_user_endpoint
    if endpoints is not None:
        endpoints.sort(key=lambda each: each.user_endpoint.host)


@script
def settings_that_change_under_a_streams_group(session: Session) -> None:
    """Standby tasks of a group that has members already, with endpoints; settings that are refused."""
    topic = "streams-settings-lines"
    make_topic(session, topic, partitions=2)
    make_topic(session, "streams-settings-store", partitions=2)
    group = "streams-settings"
    set_up(session, group)
    stateful = Topology(
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=[topic],
                state_changelog_topics=[internal("streams-settings-store")],
            )
        ]
    )
    epochs: dict[str, int] = {}
    owning: dict[str, dict[str, Any]] = {}

    def ask(label: str, member: str, **fields: Any) -> None:
        request = beat(group, member, epochs.get(member, 0), **fields)
        answer = session.ask(f"{label} {member}", request, 0, edit=_by_endpoint)
        epochs[member] = answer.member_epoch
        if answer.active_tasks is not None:
            owning[member] = {
                name: getattr(answer, name) for name in ("active_tasks", "standby_tasks", "warmup_tasks")
            }

    def go_on(label: str) -> None:
        for step in range(3):
            for member in "ab":
                ask(f"{label} {step}", member, endpoint_information_epoch=step)
                ask(f"{label} {step} confirmed", member, **owning[member])
        describe(session, label, group)

    for number, member in enumerate("ab"):
        ask("join", member, topology=stateful, user_endpoint=Endpoint(host=member, port=number))
    go_on("without standby tasks")
    set_up(session, group, **{"streams.num.standby.replicas": "1"})
    go_on("with standby tasks")
    set_up(session, group, **{"streams.num.standby.replicas": "0"})
    go_on("without them again")
    for name, value in (
        ("streams.num.standby.replicas", "-1"),
        ("streams.num.standby.replicas", "9"),
        ("streams.num.standby.replicas", "many"),
        ("streams.session.timeout.ms", "1"),
        ("streams.session.timeout.ms", "99999999"),
        ("streams.heartbeat.interval.ms", "1"),
        ("streams.heartbeat.interval.ms", "99999999"),
        ("streams.initial.rebalance.delay.ms", "-1"),
        ("streams.assignment.interval.ms", "-1"),
        ("streams.task.offset.interval.ms", "1"),
        ("streams.num.warmup.replicas", "0"),
        ("streams.unknown", "1"),
    ):
        session.ask(
            f"set {name} {value}",
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.AlterConfigsResource(
                        resource_type=GROUP_RESOURCE,
                        resource_name=group,
                        configs=[configs.AlterableConfig(name=name, config_operation=SET, value=value)],
                    )
                ]
            ),
            1,
        )


@script
def streams_groups_and_groups_of_other_kinds(session: Session) -> None:
    """A group changes its kind when it is empty, and keeps its offsets."""
    topic = "streams-kinds-lines"
    topic_id = make_topic(session, topic, partitions=2)
    group = "streams-kinds"
    set_up(session, group)
    session.ask("commit", commit(group, topic, topic_id), 9)
    session.ask("offsets alone", beat(group, "a", 0, topology=stateless(topic)), 0)
    session.ask("offsets", fetch(group, 9, topic, topic_id, member_id="a", member_epoch=2), 9)
    session.ask("leave", beat(group, "a", -1), 0)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="c",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    session.ask("consumer joins the empty group", consumer, 1)
    session.ask("classic joins the empty group", join(group, ""), 9, hide=MADE_UP)
    _list(session, ListGroupsRequest(types_filter=["classic"]), group, "Empty")
    session.ask("offsets stay", fetch(group, 9, topic, topic_id), 9)
    other = "streams-kinds-consumer"
    set_up(session, other)
    consumer.group_id = other
    consumer.member_id = "d"
    session.get(consumer, ConsumerGroupHeartbeatResponse)
    session.ask("streams joins a consumer group", beat(other, "a", 0, topology=stateless(topic)), 0)
    describe(session, "a consumer group", other)
    consumer.member_epoch = -1
    session.get(consumer, ConsumerGroupHeartbeatResponse)
    session.ask("streams joins an empty consumer group", beat(other, "a", 0, topology=stateless(topic)), 0)


@script
def partitions_of_internal_topics(session: Session) -> None:
    """Internal topics that exist with other numbers of partitions, fixed counts, and copartition groups."""
    make_topic(session, "streams-parts-four", partitions=4)
    make_topic(session, "streams-parts-two", partitions=2)
    make_topic(session, "streams-parts-store", partitions=3)

    def joined(name: str, *subtopologies: Subtopology) -> None:
        group = f"streams-parts-{name}"
        set_up(session, group)
        topology = Topology(subtopologies=list(subtopologies))
        session.ask(f"{name} joins", beat(group, "a", 0, topology=topology), 0, hide=("status_detail",))
        described = StreamsGroupDescribeRequest(group_ids=[group])
        epoch = session.get(described, StreamsGroupDescribeResponse).groups[0].members[0].member_epoch
        session.get(beat(group, "a", epoch), StreamsGroupHeartbeatResponse)

    def ready(name: str) -> None:
        group = f"streams-parts-{name}"
        session.until(
            StreamsGroupDescribeRequest(group_ids=[group]),
            StreamsGroupDescribeResponse,
            lambda answer: _beaten(session, group, 1) and answer.groups[0].group_state == "Stable",
        )

        def without_epochs(answer: Any) -> None:
            """Topics that are created one by one raise the epoch as often as they are seen."""
            by_member(answer)
            answer.groups[0].group_epoch = answer.groups[0].assignment_epoch = 0
            for member in answer.groups[0].members:
                member.member_epoch = 0

        session.ask(
            f"{name} is ready", StreamsGroupDescribeRequest(group_ids=[group]), 0, edit=without_epochs
        )

    joined(
        "wrong-changelog",
        Subtopology(
            subtopology_id="0",
            source_topics=["streams-parts-four"],
            state_changelog_topics=[internal("streams-parts-store")],
        ),
    )
    joined(
        "fixed",
        Subtopology(
            subtopology_id="0",
            source_topics=["streams-parts-two"],
            repartition_sink_topics=["streams-parts-fixed"],
        ),
        Subtopology(
            subtopology_id="1",
            repartition_source_topics=[internal("streams-parts-fixed", 5)],
            repartition_sink_topics=["streams-parts-next"],
            state_changelog_topics=[internal("streams-parts-fixed-store", **{"retention.ms": "1000"})],
        ),
        Subtopology(
            subtopology_id="2",
            source_topics=["streams-parts-four"],
            repartition_source_topics=[internal("streams-parts-next")],
        ),
    )
    ready("fixed")
    joined(
        "joined",
        Subtopology(
            subtopology_id="0",
            source_topics=["streams-parts-two"],
            repartition_sink_topics=["streams-parts-left"],
        ),
        Subtopology(
            subtopology_id="1",
            source_topics=["streams-parts-four"],
            repartition_source_topics=[internal("streams-parts-left")],
            state_changelog_topics=[internal("streams-parts-joined-store")],
            copartition_groups=[CopartitionGroup(source_topics=[0], repartition_source_topics=[0])],
        ),
    )
    ready("joined")
    joined(
        "fixed-and-joined",
        Subtopology(
            subtopology_id="0",
            source_topics=["streams-parts-two"],
            repartition_sink_topics=["streams-parts-clash"],
        ),
        Subtopology(
            subtopology_id="1",
            source_topics=["streams-parts-four"],
            repartition_source_topics=[internal("streams-parts-clash", 3)],
            copartition_groups=[CopartitionGroup(source_topics=[0], repartition_source_topics=[0])],
        ),
    )
