"""A broker gets an image that has all that was committed when it asked, or none."""

from __future__ import annotations

from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.metadata_barrier import MetadataBarrier

ROLES = {1: "broker,controller", 2: "broker,controller", 3: "broker,controller", 4: "broker"}
SETTINGS = {"request.timeout.ms": "5000"}


class Question:
    """Asked by the last broker, in its process. The answer is None if it gets no image."""

    def __init__(self, nodes: SimNodes) -> None:
        self._nodes = nodes
        self._answers: list[MetadataImage | None] = []
        process = nodes.machines[4].process
        assert process is not None
        nodes.world.loop.spawn(process, self._ask(), "asks for the newest image")

    async def _ask(self) -> None:
        lifecycle, quorum = self._nodes.broker(4).lifecycle, self._nodes.quorum(4)
        barrier = MetadataBarrier(4, lambda: lifecycle.epoch, quorum.controllers, quorum.metadata)
        try:
            self._answers.append(await barrier.newest_image())
        except OSError:
            self._answers.append(None)

    async def answer(self) -> MetadataImage | None:
        await self._nodes.until(lambda: bool(self._answers))
        return self._answers[0]


def test_a_broker_whose_image_is_behind_waits_for_what_was_committed() -> None:
    nodes = SimNodes(ROLES, settings=SETTINGS)

    def cut(source: int, target: int) -> None:
        nodes.world.fabric.cut(f"node{source}", f"node{target}")

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        for number in range(3):
            topic = f"topic-{number}"
            await nodes.create(topic, through=1, replicas=1)
            image = await Question(nodes).answer()
            assert image is not None
            assert topic in image.topics.by_name
        # Its requests arrive, and no metadata come.
        for id in (1, 2, 3):
            cut(id, 4)
        await nodes.create("newer", through=1, replicas=1)
        assert "newer" not in nodes.nodes[4].image.topics.by_name
        assert await Question(nodes).answer() is None
        nodes.world.fabric.heal()
        image = await Question(nodes).answer()
        assert image is not None
        assert "newer" in image.topics.by_name

    nodes.run(life())


@simulated(lambda: SimNodes(ROLES, settings=SETTINGS))
async def test_a_leader_that_was_deposed_confirms_nothing(nodes: SimNodes) -> None:
    """It is cut off with the broker, and does not know of the topic that the next one has created."""
    leader = nodes.quorum(1).metadata.leader_id
    assert leader is not None
    others = [id for id in (1, 2, 3) if id != leader]
    for id in others:
        for cut_off in (leader, 4):
            nodes.world.fabric.cut(f"node{id}", f"node{cut_off}")
            nodes.world.fabric.cut(f"node{cut_off}", f"node{id}")
    question = Question(nodes)
    await nodes.until(lambda: nodes.quorum(others[0]).metadata.leader_id in others)
    await nodes.create("newer", through=others[0], replicas=1)
    assert await question.answer() is None
    nodes.world.fabric.heal()
    image = await Question(nodes).answer()
    assert image is not None
    assert "newer" in image.topics.by_name
