"""Creates the clients of a simulated cluster that its scenario names."""

from __future__ import annotations

from ottla.sim.cluster.admins import (
    LevelRaiser,
    QuotaChanger,
    ReplicaMover,
    SettingsChanger,
    TopicChurn,
    VoterChanger,
)
from ottla.sim.cluster.environment import (
    COPIES,
    EVENTS,
    EXPIRING,
    LATEST,
    MANY,
    ORDERS,
    ClusterEnvironment,
    SimClient,
)
from ottla.sim.cluster.journal import GroupHistory
from ottla.sim.cluster.members import controller_addresses
from ottla.sim.cluster.readers import Copier, GroupReader, StandaloneReader
from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.cluster.security import AccessView, GuardedWriter, SecurityChanger
from ottla.sim.cluster.share_workers import JobsChurn, QueueOperator, ShareWorker
from ottla.sim.cluster.streams_groups import StreamsWorker
from ottla.sim.cluster.writers import TransactionalWriter, TwoPhaseWriter, Writer

_STRATEGIES = (("range",), ("cooperative-sticky",), ("range", "cooperative-sticky"))


def make_clients(
    environment: ClusterEnvironment, scenario: ClusterScenario, servers: str, access: AccessView
) -> dict[str, SimClient]:
    """The clients by name. Only groups with members are noted in the journal."""
    random = environment.world.random
    groups = {}
    for protocol in ("classic", "consumer"):
        committed, strategy = random.random() < 0.5, random.choice(_STRATEGIES)
        groups[protocol] = GroupHistory(protocol, (EVENTS, ORDERS), committed, strategy)
        groups[f"copy-{protocol}"] = GroupHistory(f"copy-{protocol}", (ORDERS,), True, strategy, COPIES)
    made: dict[str, list[SimClient]] = {
        "acks-0": [Writer(environment, "acks-0", acks=0, idempotent=False)],
        "acks-1": [Writer(environment, "acks-1", acks=1, idempotent=False)],
        "acks-all": [Writer(environment, "acks-all", acks=-1, idempotent=False)],
        "idempotent": [Writer(environment, f"idem-{n}", acks=-1, idempotent=True) for n in range(2)],
        # What the second one has acknowledged may be truncated later: no other replica needs to have it.
        "spread": [
            Writer(environment, "spread-all", acks=-1, idempotent=True, topic=MANY),
            Writer(environment, "spread-1", acks=1, idempotent=False, topic=MANY),
        ],
        "transactional": [TransactionalWriter(environment, "txn", transactional_id="alone")],
        "rivals": [
            TransactionalWriter(environment, f"rival-{n}", transactional_id="shared") for n in range(2)
        ],
        "prepared": [TwoPhaseWriter(environment, "prepared")],
        "follower": [StandaloneReader(environment, "follower", read_committed=False)],
        "committed-follower": [StandaloneReader(environment, "committed", read_committed=True)],
        "topics": [TopicChurn(environment, "topics")],
        "settings": [SettingsChanger(environment, "settings")],
        "voters": [VoterChanger(environment, "voters", controller_addresses(scenario, environment.brokers))],
        "levels": [LevelRaiser(environment, "levels", scenario.last_levels())],
        "streams": [StreamsWorker(environment, f"streams-{n}") for n in range(2)],
        "quotas": [QuotaChanger(environment, "quotas")],
        "moves": [ReplicaMover(environment, "moves")] if len(environment.brokers) > 1 else [],
    }
    for protocol in ("classic", "consumer"):
        made[f"{protocol}-group"] = [
            GroupReader(environment, f"{protocol}-{n}", groups[protocol], protocol=protocol) for n in range(2)
        ]
        made[f"copy-{protocol}"] = [
            Copier(environment, f"copy-{protocol}-{n}", groups[f"copy-{protocol}"], protocol=protocol)
            for n in range(2)
        ]
    wanted = [client for kind in scenario.clients or () for client in made[kind]]
    if scenario.has("secured"):
        wanted += [
            SecurityChanger(environment, "security"),
            GuardedWriter(environment, "guarded", servers, access),
        ]
    if scenario.has("compaction"):
        wanted.append(Writer(environment, "latest", acks=-1, idempotent=True, topic=LATEST))
    if scenario.has("tiered"):
        wanted.append(Writer(environment, "expiring", acks=-1, idempotent=True, topic=EXPIRING))
    terms = environment.checker.share.terms
    if terms is not None:
        wanted += [ShareWorker(environment, f"worker-{n}", terms) for n in range(terms.workers)]
        wanted += [JobsChurn(environment, "jobs"), QueueOperator(environment, "operator")]
    for client in wanted:
        if isinstance(client, GroupReader):
            environment.journal.groups[client.group.name] = client.group
    return {client.name: client for client in wanted}
