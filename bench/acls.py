"""What an authorizer costs: decisions under 10,000 ACLs, and a node that has them beside one without.

A decision that was taken before under the same ACLs should cost less than a microsecond, and producing should
be within 5 % of a node without an authorizer. Run it by `python -m bench.acls`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.brokers import Broker, ottla
from bench.harness import Row, compare, fewer, markdown, scaled
from bench.loads import Load, create, producing, requesting
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import AccessControlEntry
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.security.authorizer.audit_log import AuditLog
from ottla.security.authorizer.standard_authorizer import CLASS_NAME, StandardAuthorizer
from ottla.security.principal import ANONYMOUS, KafkaPrincipal
from ottla.testing.local_cluster import send_request

ACLS = 10_000
TOPIC = "measured"
PER_REQUEST = 2_000
_WRITE, _TOPIC = int(AclOperation.WRITE), int(AclResourceType.TOPIC)


@dataclass(frozen=True)
class _Client:
    principal: KafkaPrincipal
    client_host: str = "10.0.0.1"
    request_name: str = "Produce"


def entries() -> list[AccessControlEntry]:
    """Half of them literal, half prefixed, for a hundred users, and one for the topic that is measured."""
    made = [
        AccessControlEntry(
            _TOPIC,
            f"team-{n % 100}.topic-{n}",
            PatternType.LITERAL if n % 2 else PatternType.PREFIXED,
            f"User:user-{n % 100}",
            "*",
            _WRITE,
            AclPermissionType.ALLOW,
        )
        for n in range(ACLS - 1)
    ]
    own = AccessControlEntry(
        _TOPIC, TOPIC, PatternType.LITERAL, str(ANONYMOUS), "*", AclOperation.ALL, AclPermissionType.ALLOW
    )
    return [*made, own]


def decisions() -> Iterator[Row]:
    """Decisions of the authorizer by itself."""
    image = MetadataImage(acls={n.to_bytes(16): acl for n, acl in enumerate(entries())})
    authorizer = StandardAuthorizer(frozenset(), AuditLog(lambda: 0.0), allow_everyone=False)
    authorizer.complete_initial_load(image)
    client = _Client(ANONYMOUS)
    count = scaled(200_000, 50_000)

    def again() -> None:
        for _ in range(count):
            authorizer.allowed(client, _WRITE, _TOPIC, TOPIC)

    yield _cost("a decision that was taken before", count, again, "< 1,000")
    names = [f"team-{n % 100}.topic-{n}-x" for n in range(4_000)]

    def first() -> None:
        authorizer.load(image)
        for name in names:
            authorizer.allowed(client, _WRITE, _TOPIC, name, log_denied=False)

    yield _cost("a first decision, with its share of the index", len(names), first)

    changes = 100

    def change() -> None:
        latest = image
        authorizer.load(latest)
        for n in range(changes):
            delta = MetadataDelta(latest)
            delta.replay(entries_for_changes[n].to_record((ACLS + n).to_bytes(16)))
            latest = delta.apply(Provenance(n, 1, 0))
            authorizer.apply(delta, latest)

    entries_for_changes = [
        AccessControlEntry(_TOPIC, f"new-{n}", PatternType.PREFIXED, "User:x", "*", _WRITE, 3)
        for n in range(changes)
    ]
    yield _cost("an ACL that is added, with its share of the index", changes, change)


def _cost(name: str, count: int, work: Callable[[], None], target: str = "") -> Row:
    """The CPU time of one of so many, which does not depend on what else the machine does."""
    taken = []
    for _ in range(5):
        begin = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - begin) / count)
    return fewer(name, "ns of CPU", min(taken), None, "–", target)


def prepare(broker: Broker) -> None:
    """Create the ACLs on a node that lets everyone do what no ACL is about."""
    acls = entries()
    for begin in range(0, len(acls), PER_REQUEST):
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in acls[begin : begin + PER_REQUEST]
            ]
        )
        port = int(broker.bootstrap.rpartition(":")[2])
        response = send_request(port, request, 3, CreateAclsResponse, timeout_s=120)
        assert all(result.error_code == 0 for result in response.results)


def nodes() -> Iterator[Row]:
    """A node with 10,000 ACLs beside one without an authorizer."""
    settings = {"authorizer.class.name": CLASS_NAME, "allow.everyone.if.no.acl.found": "true"}
    with ottla(**settings) as secured, ottla() as plain:
        for broker in (secured, plain):
            create(broker, TOPIC)
        prepare(secured)
        without = "Ottla without an authorizer"
        for name, unit, load, count in (
            ("produce 100 B with 10,000 ACLs", "records", _producing, scaled(1_000_000, 400_000)),
            ("small produce requests with 10,000 ACLs", "requests", requesting, scaled(20_000, 5_000)),
        ):
            before = [broker.cpu_seconds() for broker in (secured, plain)]
            yield compare(
                name,
                count,
                f"{unit}/s",
                load(secured, TOPIC, count),
                load(plain, TOPIC, count),
                peer_name=without,
                target="≥ 0.95",
            )
            own, other = (
                broker.cpu_seconds() - begin for broker, begin in zip((secured, plain), before, strict=True)
            )
            yield fewer(f"broker CPU of that, {unit}", "s", own, other, without, "≥ 0.95")


def _producing(broker: Broker, topic: str, count: int) -> Load:
    return producing(broker, topic, 100, count)


def rows() -> Iterator[Row]:
    yield from decisions()
    yield from nodes()


if __name__ == "__main__":
    print(markdown(list(rows())))
