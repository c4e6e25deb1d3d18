"""The clients of a simulated cluster, as its plan asks for them."""

from __future__ import annotations

from ottla.sim.cluster.admins import Mover, Settler, TopicChurn
from ottla.sim.cluster.environment import COPIES, EVENTS, ORDERS, Client, Stage
from ottla.sim.cluster.journal import GroupStory
from ottla.sim.cluster.plan import ClusterPlan
from ottla.sim.cluster.readers import Copier, Follower, GroupReader
from ottla.sim.cluster.writers import TransactionalWriter, Writer

__all__ = ["make_clients"]

_STRATEGIES = (("range",), ("cooperative-sticky",), ("range", "cooperative-sticky"))


def make_clients(stage: Stage, plan: ClusterPlan) -> dict[str, Client]:
    """By name. Groups that nobody is a member of have no story."""
    random = stage.world.random
    stories = {}
    for protocol in ("classic", "consumer"):
        committed, strategy = random.random() < 0.5, random.choice(_STRATEGIES)
        stories[protocol] = GroupStory(protocol, (EVENTS, ORDERS), committed, strategy)
        stories[f"copy-{protocol}"] = GroupStory(f"copy-{protocol}", (ORDERS,), True, strategy, COPIES)
    made: dict[str, list[Client]] = {
        "acks-0": [Writer(stage, "acks-0", acks=0, idempotent=False)],
        "acks-1": [Writer(stage, "acks-1", acks=1, idempotent=False)],
        "acks-all": [Writer(stage, "acks-all", acks=-1, idempotent=False)],
        "idempotent": [Writer(stage, f"idem-{n}", acks=-1, idempotent=True) for n in range(2)],
        "transactional": [TransactionalWriter(stage, "txn", transactional_id="alone")],
        "rivals": [TransactionalWriter(stage, f"rival-{n}", transactional_id="shared") for n in range(2)],
        "follower": [Follower(stage, "follower", read_committed=False)],
        "committed-follower": [Follower(stage, "committed", read_committed=True)],
        "topics": [TopicChurn(stage, "topics")],
        "settings": [Settler(stage, "settings")],
        "moves": [Mover(stage, "moves")] if len(stage.brokers) > 1 else [],
    }
    for protocol in ("classic", "consumer"):
        made[f"{protocol}-group"] = [
            GroupReader(stage, f"{protocol}-{n}", stories[protocol], protocol=protocol) for n in range(2)
        ]
        made[f"copy-{protocol}"] = [
            Copier(stage, f"copy-{protocol}-{n}", stories[f"copy-{protocol}"], protocol=protocol)
            for n in range(2)
        ]
    wanted = [client for kind in plan.clients or () for client in made[kind]]
    for client in wanted:
        if isinstance(client, GroupReader):
            stage.journal.groups[client.story.name] = client.story
    return {client.name: client for client in wanted}
