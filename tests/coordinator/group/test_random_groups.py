"""Random runs of groups, from seeds, checked for invariants.

Members of both protocols join, commit, fall silent, lose answers and return; writes fail; the coordinator
restarts. After every step: no two members of a consumer group own a partition, the state after a restart is
the coordinator's state, also after compaction, and no offset goes back behind one that was acknowledged in
order.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ottla.coordinator.group.classic.classic_group import ClassicGroup
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroup
from ottla.coordinator.group.consumer_group_manager import ConsumerGroupManager
from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.errors import ErrorCode
from tests.coordinator.group.group_harness import GROUP, GroupHarness, assigned, durable
from tests.support.effort import seeds
from tests.support.rows import for_each

STEPS = 120


class Client:
    """A member with the consumer protocol, which does what a client does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.running = True
        self.lost = False  # after which a client tells everything again

    def beat(self, lab: GroupHarness, rng: random.Random) -> None:
        topics = ("a", "b") if rng.random() < 0.8 else ("a",)
        if self.epoch == 0:
            self.owned = {}
            answer = lab.beat(self.name, 0, topics=topics, rebalance_ms=20_000)
        else:
            full = self.lost or rng.random() < 0.3
            answer = lab.beat(
                self.name,
                self.epoch,
                owned=self.owned,
                topics=topics if full else None,
                rebalance_ms=20_000 if full else None,
            )
        self.lost = rng.random() < 0.1
        if self.lost:
            return
        if answer.error is not ErrorCode.NONE:
            if answer.error in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self.epoch, self.owned = 0, {}
            return
        self.epoch = answer.value.member_epoch
        if answer.value.assignment is not None:
            self.owned = assigned(answer.value)

    def commit(self, lab: GroupHarness, offset: int) -> None:
        """A member may commit what it has, as far as it knows, however far the group has moved on."""
        places = {(topic, each): offset for topic, partitions in self.owned.items() for each in partitions}
        if self.epoch == 0 or not places:
            return
        is_member = self.name in lab.consumers.members
        answer = lab.commit(places, member_id=self.name, epoch=self.epoch)
        if not is_member:
            assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        elif not lab.fail_writes:
            assert set(lab.commit_codes(answer)) == {ErrorCode.NONE}


def check(lab: GroupHarness) -> None:
    group = lab.shard.metadata.groups.get(GROUP)
    if isinstance(group, ConsumerGroup):
        seen: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.revoking):
                for topic, partitions in owned.items():
                    for partition in partitions:
                        owner = seen.setdefault((topic, partition), member.member_id)
                        assert owner == member.member_id, (
                            f"{topic!r}-{partition}: {owner}, {member.member_id}"
                        )
        assert seen == group.owners
        assert group.target_epoch <= group.epoch
        for member in group.members.values():
            assert member.epoch <= group.target_epoch
    elif isinstance(group, ClassicGroup):
        assert group.leader_id is None or group.leader_id in group.members
        assert group.joined == {id for id, member in group.members.items() if member.is_awaiting_join}
        names = [name for member in group.members.values() for name, _ in member.protocols]
        assert group._supporters == Counter(names)
        for classic in group.members.values():
            assert not (classic.is_awaiting_join and classic.is_awaiting_sync)


def check_replay(lab: GroupHarness) -> None:
    assert durable(lab.replayed()) == durable(lab.shard)
    if all(entry.producer is None for entry in lab.log):
        compacted = durable(lab.replayed(lab.compacted()))
        assert compacted == durable(lab.shard)


@for_each("seed", seeds(100))
def test_consumer_groups(seed: int) -> None:
    consumer_life(seed)


@pytest.mark.parametrize("seed", range(20))
def test_quiet_heartbeats_need_no_draft_to_be_answered_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = consumer_life(seed)
    monkeypatch.setattr(ConsumerGroupManager, "_is_unchanged", lambda *_: False)
    thorough = consumer_life(seed)
    assert short.log == thorough.log
    told, thoroughly = ([repr(each.value) for each in lab.answers] for lab in (short, thorough))
    assert told == thoroughly


def consumer_life(seed: int) -> GroupHarness:
    rng = random.Random(seed)
    lab = GroupHarness({"a": 3, "b": 2}, consumer_assignment_interval_ms=rng.choice([0, 1_000]))
    clients = [Client(f"m{index}") for index in range(rng.randrange(1, 6))]
    size = {"a": 3, "b": 2}
    for number in range(STEPS):
        roll = rng.random()
        client = rng.choice(clients)
        lab.fail_writes = rng.random() < 0.05
        if roll < 0.1:
            client.commit(lab, number)
        elif roll < 0.7:
            if client.running:
                client.beat(lab, rng)
        elif roll < 0.78:
            client.running = not client.running
        elif roll < 0.83:
            if client.epoch > 0:
                lab.beat(client.name, -1)
            client.epoch = 0
        elif roll < 0.93:
            lab.advance(rng.choice([100, 3_000, 20_000]))
        elif roll < 0.96 and not lab.fail_writes:
            lab.reload()
        elif not lab.fail_writes:
            name = rng.choice("ab")
            size[name] += 1
            lab.set_topic(name, size[name])
        check(lab)
    lab.fail_writes = False
    check_replay(lab)
    settle(lab, clients, size)
    return lab


def settle(lab: GroupHarness, clients: list[Client], size: dict[str, int]) -> None:
    """Once nothing fails any more, all partitions are with the members that are there, and stay."""
    for client in clients:
        client.running = True
    quiet = random.Random("quiet")
    quiet.random = lambda: 0.5  # type: ignore[method-assign]
    for _ in range(12):
        lab.advance(4_000)
        for client in clients:
            client.beat(lab, quiet)
            check(lab)
    group = lab.consumers
    assert group.state.value == "Stable", group
    wanted = {(topic, partition) for topic in size for partition in range(size[topic])}
    owned = {
        (topic, partition)
        for client in clients
        for topic, partitions in client.owned.items()
        for partition in partitions
    }
    subscribed = {topic for member in group.members.values() for topic in member.topics}
    assert owned == {place for place in wanted if place[0] in subscribed}


class Old:
    """A classic member: joins, syncs, sends heartbeats."""

    def __init__(self, lab: GroupHarness) -> None:
        self.lab = lab
        self.id = ""
        self.generation = -1
        self.pending: Any = None

    def step(self) -> None:
        lab = self.lab
        if self.pending is not None:
            if not self.pending.done:
                return
            answer, self.pending = self.pending, None
            if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.id = answer.value.member_id
            elif answer.error is ErrorCode.NONE and hasattr(answer.value, "generation_id"):
                self.generation = answer.value.generation_id
                members = {member.member_id: b"x" for member in answer.value.members}
                self.pending = lab.sync(self.id, self.generation, members)
            elif answer.error is not ErrorCode.NONE:
                self.generation = -1
                if answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    self.id = ""
            return
        if self.generation < 0:
            self.pending = lab.join(self.id, session_ms=10_000, rebalance_ms=8_000)
            return
        error = lab.heartbeat(self.id, self.generation).error
        if error is not ErrorCode.NONE:
            self.generation = -1
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.id = ""


@for_each("seed", seeds(100))
def test_classic_groups(seed: int) -> None:
    rng = random.Random(seed)
    lab = GroupHarness(group_max_size=rng.choice([3, 100]))
    members = [Old(lab) for _ in range(rng.randrange(1, 6))]
    for _ in range(STEPS):
        roll = rng.random()
        lab.fail_writes = rng.random() < 0.05
        member = rng.choice(members)
        if roll < 0.7:
            member.step()
        elif roll < 0.75:
            if member.id and member.pending is None and not lab.fail_writes:
                lab.leave(member.id)
                member.generation = -1
        elif roll < 0.95:
            lab.advance(rng.choice([100, 1_000, 4_000]))
        elif not lab.fail_writes:
            lab.reload()
            for other in members:
                if other.pending is not None and not other.pending.done:
                    other.pending, other.generation = None, -1  # the connection broke
        check(lab)
    lab.fail_writes = False
    for _ in range(80):
        for member in members:
            member.step()
            check(lab)
        lab.advance(1_000)
    if lab.settings.node.group_max_size == 100:
        assert lab.classic.state.value == "Stable"
        assert set(lab.classic.members) == {member.id for member in members}
        stored = lab.replayed().metadata.groups[GROUP]
        assert isinstance(stored, ClassicGroup)
        assert (stored.generation, set(stored.members)) == (lab.classic.generation, set(lab.classic.members))


@for_each("seed", seeds(60))
def test_offsets_never_go_back(seed: int) -> None:
    rng = random.Random(seed)
    lab = GroupHarness({"a": 2})
    acknowledged: dict[tuple[str, int], int] = {}
    open_transactions: dict[int, dict[tuple[str, int], int]] = {}
    for value in range(STEPS):
        roll = rng.random()
        where = ("a", rng.randrange(2))
        lab.fail_writes = rng.random() < 0.1
        producer = ProducerIdAndEpoch(rng.randrange(3), 0)
        if roll < 0.4:
            if lab.commit({where: value}).error is ErrorCode.NONE:
                acknowledged[where] = value
        elif roll < 0.7:
            if lab.txn_commit(producer, {where: value}).error is ErrorCode.NONE:
                open_transactions.setdefault(producer.id, {})[where] = value
        elif roll < 0.9:
            commit = rng.random() < 0.5
            lab.end_transaction(producer, commit)
            for place, number in open_transactions.pop(producer.id, {}).items():
                if commit:
                    acknowledged[place] = max(number, acknowledged.get(place, -1))
        else:
            lab.reload()
        assert {place: number for place, number in lab.offsets().items() if number >= 0} == acknowledged
    check_replay(lab)
