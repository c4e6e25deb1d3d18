"""Share groups under random members, topics, failures and restarts; in the end the group settles."""

from __future__ import annotations

from random import Random

from ottla.coordinator.group.requests import ShareStatesInitialized, ShareStatesToInitialize
from ottla.coordinator.group.share.share_group import ShareGroup
from ottla.protocol.errors import ErrorCode
from tests.coordinator.group.group_harness import durable, topic_id
from tests.coordinator.group.test_share_group_manager import GROUP, ShareHarness
from tests.support.rows import for_each

TOPICS = ("jobs", "mails", "logs")
EXPECTED = {
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Life:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.lab = ShareHarness({"jobs": 2, "mails": 1})
        self.epochs: dict[str, int] = {}

    def group(self) -> ShareGroup | None:
        group = self.lab.shard.metadata.groups.get(GROUP)
        assert group is None or isinstance(group, ShareGroup)
        return group

    def step(self) -> None:
        chance, lab = self.chance, self.lab
        match chance.randrange(12):
            case 0 | 1:
                topics = tuple(chance.sample(TOPICS, chance.randint(1, 3)))
                self.beat(f"m{chance.randrange(6)}", 0, topics)
            case 2 | 3 | 4 | 5:
                if self.epochs:
                    name = chance.choice(sorted(self.epochs))
                    self.beat(name, self.epochs[name])
            case 6:
                if self.epochs:
                    name = chance.choice(sorted(self.epochs))
                    self.beat(name, -1)
            case 7:
                lab.advance(chance.choice((10, 1_000, 20_000, 50_000)))
            case 8:
                self.persist(fails=chance.random() < 0.3)
            case 9:
                if chance.random() < 0.3:
                    lab.sent = []  # the work of a broker that stops is lost
                    lab.reload()
            case 10:
                name = chance.choice(TOPICS)
                known = lab.image.topics.by_name.get(name)
                if known is not None and chance.random() < 0.3:
                    lab.delete_topic(name)
                else:
                    count = 0 if known is None else len(known.partitions)
                    lab.set_topic(name, max(1, count + chance.randint(0, 2)))
            case 11:
                lab.fail_writes = chance.random() < 0.3

    def beat(self, name: str, epoch: int, topics: tuple[str, ...] | None = None) -> None:
        answer = self.lab.share_beat(name, epoch, topics)
        assert answer.error in EXPECTED, answer.value
        if answer.error is ErrorCode.NONE and epoch >= 0:
            self.epochs[name] = answer.value.member_epoch
        elif answer.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self.epochs.pop(name, None)

    def persist(self, *, fails: bool) -> None:
        work, self.lab.sent = self.lab.sent, []
        for each in work:
            assert isinstance(each, ShareStatesToInitialize)
            done, failed = (each.partitions[::2], each.partitions[1::2]) if fails else (each.partitions, ())
            if self.lab.submit(ShareStatesInitialized(GROUP, done, failed)).error is not ErrorCode.NONE:
                continue  # the heartbeats request it again

    def check(self) -> None:
        lab = self.lab
        assert durable(lab.replayed()) == durable(lab.shard)
        assert durable(lab.replayed(lab.compacted())) == durable(lab.shard)
        group = self.group()
        if group is None:
            return
        assert group.target_epoch <= group.epoch
        assert group.states.deleting.keys().isdisjoint(group.states.initialized)
        for member in group.members.values():
            assert member.epoch <= group.target_epoch
        assert lab.shard.metadata.share_groups == {GROUP: group}


@for_each("seed", range(60))
def test_a_random_life_ends_in_a_settled_group(seed: int) -> None:
    life = Life(seed)
    for _ in range(life.chance.randint(20, 120)):
        life.step()
        life.check()
    lab = life.lab
    lab.fail_writes = False
    # Of the members only these live on.
    survivors = {"s1": ("jobs",), "s2": TOPICS}
    for name, topics in survivors.items():
        life.beat(name, 0, topics)
    for _ in range(70):
        life.persist(fails=False)
        lab.advance(1_000)
        for name in survivors:
            life.beat(name, life.epochs[name])
    life.check()
    group = life.group()
    assert group is not None
    assert group.members.keys() == survivors.keys()
    assert group.is_settled(lab.image.topics.by_id)
    size = len(lab.log)
    for name in survivors:
        life.beat(name, life.epochs[name])
    assert len(lab.log) == size, "a settled group writes nothing"
    for name in TOPICS:
        known = lab.image.topics.by_name.get(name)
        if known is None:
            continue
        for partition in known.partitions:
            assert any(
                partition in member.assigned.get(topic_id(name), frozenset())
                for member in group.members.values()
            ), f"{name}-{partition} has no member"
