"""The authorizer decides as Kafka's StandardAuthorizer does, whatever the ACLs are and however they came."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import AccessControlEntry
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.protocol.acl import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.errors import KafkaError
from ottla.protocol.metadata_records import RemoveAccessControlEntryRecord
from ottla.security.authorizer import standard_authorizer
from ottla.security.authorizer.audit_log import LOGGER_NAME, AuditLog
from ottla.security.authorizer.standard_authorizer import StandardAuthorizer, parse_super_users
from ottla.security.principal import KafkaPrincipal

TOPIC, CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


@dataclass
class Client:
    name: str = "alice"
    client_host: str = "10.0.0.1"
    request_name: str = "Produce"

    @property
    def principal(self) -> KafkaPrincipal:
        return KafkaPrincipal("User", self.name)


ALICE, BOB = Client("alice"), Client("bob")


def acl(
    name: str,
    operation: AclOperation = READ,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = LITERAL,
    permission: AclPermissionType = ALLOW,
    type: AclResourceType = TOPIC,
) -> AccessControlEntry:
    return AccessControlEntry(type, name, pattern, principal, host, operation, permission)


def image_of(acls: Iterable[AccessControlEntry]) -> MetadataImage:
    return MetadataImage(acls={n.to_bytes(16): each for n, each in enumerate(acls)})


def authorizer(
    *acls: AccessControlEntry, super_users: str = "", allow_everyone: bool = False
) -> StandardAuthorizer:
    made = StandardAuthorizer(
        parse_super_users(super_users), AuditLog(lambda: 0.0), allow_everyone=allow_everyone
    )
    made.complete_initial_load(image_of(acls))
    return made


def may(
    which: StandardAuthorizer,
    operation: AclOperation = READ,
    name: str = "orders",
    client: Client = ALICE,
    type: AclResourceType = TOPIC,
) -> bool:
    return which.allowed(client, operation, type, name)


class TestRules:
    def test_without_acls_nothing_is_allowed_unless_everything_is(self) -> None:
        assert not may(authorizer())
        assert may(authorizer(allow_everyone=True))

    def test_one_acl_of_a_resource_ends_what_everyone_may_do_with_it(self) -> None:
        which = authorizer(acl("orders", principal="User:bob"), allow_everyone=True)
        assert not may(which)
        assert may(which, name="others")
        which = authorizer(acl("ord", principal="User:bob", pattern=PREFIXED), allow_everyone=True)
        assert not may(which)

    def test_a_denial_wins_over_every_permission(self) -> None:
        for pattern, name in ((LITERAL, "orders"), (LITERAL, "*"), (PREFIXED, "o")):
            deny = acl(name, principal="User:*", pattern=pattern, permission=DENY)
            which = authorizer(acl("orders"), acl("*"), acl("ord", pattern=PREFIXED), deny)
            assert not may(which)

    def test_hosts_and_principals_must_match(self) -> None:
        which = authorizer(acl("orders", host="10.0.0.1"), acl("orders", principal="Group:alice"))
        assert may(which)
        assert not may(which, client=Client(client_host="10.0.0.2"))
        assert not may(which, client=BOB)
        assert may(authorizer(acl("orders", principal="User:*")), client=BOB)

    def test_a_range_of_addresses_is_for_the_clients_in_it(self) -> None:
        which = authorizer(acl("orders", host="10.0.0.0/30"), acl("orders", host="2001:db8::/32"))
        for host in ("10.0.0.0", "10.0.0.1", "10.0.0.3", "2001:db8::1"):
            assert may(which, client=Client(client_host=host))
            assert which.allowed_by_resource_type(Client(client_host=host), READ, TOPIC)
        for host in ("10.0.0.4", "9.255.255.255", "2001:db9::1", "::1"):
            assert not may(which, client=Client(client_host=host))
            assert not which.allowed_by_resource_type(Client(client_host=host), READ, TOPIC)
        denied = acl("orders", host="10.0.0.2/31", permission=DENY)
        which = authorizer(acl("orders"), denied)
        assert [may(which, client=Client(client_host=f"10.0.0.{n}")) for n in range(1, 5)] == [
            True,
            False,
            False,
            True,
        ]

    def test_what_is_no_range_of_addresses_is_for_nobody(self) -> None:
        # Kafka 4.3 has taken any text.
        which = authorizer(acl("orders", host="10.0.0.0/99"), acl("orders", host="/"))
        assert not may(which)

    def test_patterns(self) -> None:
        which = authorizer(acl("ord", pattern=PREFIXED), acl("a", pattern=LITERAL))
        assert may(which, name="ord")
        assert not may(which, name="or")
        assert may(which, name="a")
        assert not may(which, name="ab")
        assert not may(authorizer(acl("*", pattern=PREFIXED)))
        assert may(authorizer(acl("*")))
        assert not may(authorizer(acl("orders", type=AclResourceType.GROUP)))

    @pytest.mark.parametrize(
        ("given", "implied"),
        [
            (READ, DESCRIBE),
            (WRITE, DESCRIBE),
            (AclOperation.DELETE, DESCRIBE),
            (AclOperation.ALTER, DESCRIBE),
            (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
            (AclOperation.ALL, AclOperation.CREATE),
        ],
    )
    def test_operations_imply_others_where_they_allow(
        self, given: AclOperation, implied: AclOperation
    ) -> None:
        assert may(authorizer(acl("orders", given)), implied)
        if given is not AclOperation.ALL:
            denying = authorizer(acl("orders", given, permission=DENY), acl("orders", implied))
            assert may(denying, implied)
            assert not may(authorizer(acl("orders", implied)), given)

    def test_super_users_may_do_everything_before_anything_is_read(self) -> None:
        which = StandardAuthorizer(
            parse_super_users("User:alice; User:CN=x,O=y ;;"), AuditLog(lambda: 0.0), allow_everyone=True
        )
        assert may(which)
        assert may(which, client=Client("CN=x,O=y"))
        with pytest.raises(KafkaError, match="has not read the ACLs yet"):
            may(which, client=BOB)
        which.complete_initial_load(image_of([acl("orders", principal="User:*", permission=DENY)]))
        assert may(which)
        assert not may(which, client=BOB)

    def test_a_super_user_without_a_type_is_refused(self) -> None:
        with pytest.raises(ValueError, match="principalType:principalName but got alice"):
            parse_super_users("User:bob;alice")


class TestByResourceType:
    def check(self, *acls: AccessControlEntry, super_users: str = "") -> bool:
        return authorizer(*acls, super_users=super_users).allowed_by_resource_type(ALICE, WRITE, TOPIC)

    def test_any_resource_is_enough(self) -> None:
        assert self.check(acl("a", WRITE))
        assert self.check(acl("a", AclOperation.ALL, pattern=PREFIXED, principal="User:*"))
        assert not self.check(acl("a", READ))
        assert not self.check(acl("a", WRITE, principal="User:bob"), acl("b", WRITE, host="10.9.9.9"))
        assert not self.check(acl("a", WRITE, type=AclResourceType.GROUP))
        assert self.check(super_users="User:alice")

    def test_a_denial_must_cover_all_that_is_allowed(self) -> None:
        deny = lambda name, pattern: acl(name, WRITE, pattern=pattern, permission=DENY)  # noqa: E731
        assert not self.check(acl("abc", WRITE), deny("abc", LITERAL))
        assert not self.check(acl("abc", WRITE), deny("ab", PREFIXED))
        assert not self.check(acl("abc", WRITE, pattern=PREFIXED), deny("abc", PREFIXED))
        assert self.check(acl("abc", WRITE, pattern=PREFIXED), deny("abc", LITERAL), deny("abcd", PREFIXED))
        assert not self.check(acl("abc", WRITE, pattern=PREFIXED), deny("*", LITERAL))
        assert self.check(acl("*", WRITE), deny("a", PREFIXED))


class TestFollowing:
    @pytest.mark.slow
    def test_random_acls_decide_as_a_walk_over_all_of_them_does(self) -> None:
        rng = random.Random(16)
        names = ["*", "a", "ab", "abc", "abd", "b", "ba"]
        clients = [Client(name, host) for name in ("alice", "bob") for host in ("10.0.0.1", "10.0.0.2")]
        operations = [READ, WRITE, DESCRIBE, AclOperation.ALL, AclOperation.ALTER_CONFIGS]

        def any_acl() -> AccessControlEntry:
            return acl(
                rng.choice(names),
                rng.choice(operations),
                principal=rng.choice(["User:alice", "User:bob", "User:*"]),
                host=rng.choice(["*", "10.0.0.1"]),
                pattern=rng.choice([LITERAL, PREFIXED]),
                permission=rng.choice([ALLOW, ALLOW, DENY]),
                type=rng.choice([TOPIC, AclResourceType.GROUP]),
            )

        for everyone in (False, True):
            which = authorizer(allow_everyone=everyone)
            image, number = MetadataImage(), 0
            which.load(image)
            for step in range(200):
                delta = MetadataDelta(image)
                for _ in range(rng.randint(1, 3)):
                    number += 1
                    entry = any_acl()
                    if entry not in image.acls.values():
                        delta.replay(entry.to_record(number.to_bytes(16)))
                if image.acls and rng.random() < 0.6:
                    for id in rng.sample(sorted(image.acls), min(2, len(image.acls))):
                        delta.replay(RemoveAccessControlEntryRecord(id=id))
                image = delta.apply(Provenance(step, 1, 0))
                before = which.version
                which.apply(delta, image)
                assert which.version > before or not delta.changed_acls
                for client in clients:
                    for operation in (READ, WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS):
                        for name in ("a", "abc", "abdx", "b", "c"):
                            expected = walk(list(image.acls.values()), client, operation, name, everyone)
                            assert may(which, operation, name, client) == expected
                            assert may(which, operation, name, client) == expected  # as it was kept

    def test_a_change_that_was_missed_is_made_up_for(self) -> None:
        which = authorizer(acl("orders"))
        missed = image_of([])
        delta = MetadataDelta(missed)
        delta.replay(acl("others").to_record(bytes(16)))
        which.apply(delta, delta.apply(Provenance(1, 1, 0)))
        assert may(which, name="others")
        assert not may(which)

    def test_decisions_that_are_kept_are_bounded(self) -> None:
        which = authorizer(acl("t", pattern=PREFIXED))
        for n in range(3 * standard_authorizer._GENERATION):
            assert may(which, name=f"t{n}")
        assert may(which, name="t" * 30_000)
        assert len(which._younger) + len(which._older) <= 2 * standard_authorizer._GENERATION
        assert max(len(key[2]) for key in which._younger) < 1_000


def walk(
    acls: list[AccessControlEntry], client: Client, operation: AclOperation, name: str, everyone: bool
) -> bool:
    """Kafka's rules, said once more and slowly."""
    matching = [
        each
        for each in acls
        if each.resource_type == TOPIC
        and (
            name.startswith(each.resource_name)
            if each.pattern_type == PREFIXED
            else each.resource_name in ("*", name)
        )
    ]
    if not matching:
        return everyone
    own = [
        each
        for each in matching
        if each.principal in ("User:*", str(client.principal)) and each.host in ("*", client.client_host)
    ]
    if any(e.permission_type == DENY and e.operation in (AclOperation.ALL, operation) for e in own):
        return False
    implied = {
        DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
    }
    enough = {AclOperation.ALL, operation} | implied.get(operation, set())
    return any(each.permission_type == ALLOW and each.operation in enough for each in own)


class TestAuditLog:
    def test_lines_are_those_of_kafka(self, caplog: pytest.LogCaptureFixture) -> None:
        which = authorizer(acl("orders", READ), acl("orders", WRITE, permission=DENY))
        with caplog.at_level(logging.DEBUG, LOGGER_NAME):
            assert may(which)
            assert not may(which, WRITE)
            assert not may(which, WRITE, CLUSTER_NAME, BOB, CLUSTER)
            assert not which.allowed(BOB, READ, TOPIC, "hidden", log_denied=False)
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            (
                "DEBUG",
                "Principal = User:alice is Allowed operation = READ from host = 10.0.0.1 on resource = "
                "Topic:LITERAL:orders for request = Produce with resourceRefCount = 1 based on rule "
                "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
                "principal=User:alice, host=*, operation=READ, permissionType=ALLOW))",
            ),
            (
                "INFO",
                "Principal = User:alice is Denied operation = WRITE from host = 10.0.0.1 on resource = "
                "Topic:LITERAL:orders for request = Produce with resourceRefCount = 1 based on rule "
                "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
                "principal=User:alice, host=*, operation=WRITE, permissionType=DENY))",
            ),
            (
                "INFO",
                "Principal = User:bob is Denied operation = WRITE from host = 10.0.0.1 on resource = "
                "Cluster:LITERAL:kafka-cluster for request = Produce with resourceRefCount = 1 based on rule "
                "DefaultDeny",
            ),
        ]

    def test_a_name_cannot_forge_a_line_nor_fill_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        which = authorizer()
        with caplog.at_level(logging.INFO, LOGGER_NAME):
            may(which, name="x\nPrincipal = User:root is Allowed")
            may(which, name="y" * 30_000, client=Client("eve\r\n\x1b[2J"))
        for record in caplog.records:
            line = record.getMessage()
            assert line.isprintable()
            assert len(line) < 1_000

    def test_a_flood_is_thinned_out_and_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        now = 0.0
        which = StandardAuthorizer(frozenset(), AuditLog(lambda: now), allow_everyone=False)
        which.complete_initial_load(image_of([]))
        with caplog.at_level(logging.INFO, LOGGER_NAME):
            for n in range(20_000):
                may(which, name=f"t{n}")
            assert len(caplog.records) == 5_000
            now = 1.0
            may(which)
        assert caplog.records[-2].getMessage().startswith("15000 more denials were left out")
        assert "orders" in caplog.records[-1].getMessage()
