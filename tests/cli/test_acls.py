"""`ottla acls`: list, add and remove; and Kafka's own `kafka-acls` beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.testing.local_node import LocalNode
from tests.support import java
from tests.support.command_line import CommandLine

SETTINGS = {"authorizer.class.name": CLASS_NAME, "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture
def ottla(node: LocalNode) -> Iterator[CommandLine]:
    line = CommandLine(node.bootstrap_servers)
    yield line
    for user in ("alice", "bob", "*"):
        line("acls", "remove", "--principal", user, "--yes")


def rows(line: CommandLine, *options: str) -> list[tuple[str, ...]]:
    """What is listed: resource, name, pattern, principal, permission, operation, host."""
    return [tuple(each.values()) for each in line.ok("acls", "list", "--json", *options).json]


def test_what_a_producer_and_a_consumer_need(ottla: CommandLine) -> None:
    ottla.ok(
        "acls", "add", "--principal", "alice", "--producer", "--topic", "orders", "--transactional-id", "t"
    )
    ottla.ok(
        *(
            "acls",
            "add",
            "--principal",
            "User:bob",
            "--consumer",
            "--topic",
            "or",
            "--prefixed",
            "--group",
            "g",
        )
    )
    alice, bob = ("User:alice", "allow"), ("User:bob", "allow")
    assert rows(ottla) == [
        ("topic", "or", "prefixed", *bob, "read", "*"),
        ("topic", "or", "prefixed", *bob, "describe", "*"),
        ("topic", "orders", "literal", *alice, "write", "*"),
        ("topic", "orders", "literal", *alice, "create", "*"),
        ("topic", "orders", "literal", *alice, "describe", "*"),
        ("group", "g", "prefixed", *bob, "read", "*"),
        ("transactional-id", "t", "literal", *alice, "write", "*"),
        ("transactional-id", "t", "literal", *alice, "describe", "*"),
    ]
    assert {row[3] for row in rows(ottla, "--topic", "orders")} == {"User:alice", "User:bob"}
    assert {row[3] for row in rows(ottla, "--topic", "orders", "--exact")} == {"User:alice"}
    assert {row[3] for row in rows(ottla, "--principal", "bob")} == {"User:bob"}
    ottla.ok("acls", "remove", "--principal", "alice", "--producer", "--topic", "orders", "--yes")
    assert {row[0] for row in rows(ottla, "--principal", "alice")} == {"transactional-id"}


def test_denials_hosts_and_the_cluster(ottla: CommandLine) -> None:
    ottla.ok(
        *("acls", "add", "-p", "alice", "-o", "alter-configs", "--cluster", "--deny"),
        *("--host", "10.0.0.1", "--host", "10.0.0.2"),
    )
    expected = [
        ("cluster", "kafka-cluster", "literal", "User:alice", "deny", "alter-configs", host)
        for host in ("10.0.0.1", "10.0.0.2")
    ]
    assert rows(ottla) == expected
    assert len(ottla.ok("acls", "remove", "--cluster", "--dry-run", "--json").json) == 2
    assert rows(ottla) == expected
    table = ottla.ok("acls", "list").out.splitlines()
    assert table[0].split() == [
        *("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "PERMISSION", "OPERATION", "HOST")
    ]
    asked = ottla("acls", "remove", "--cluster")
    assert (asked.status, "use --yes" in asked.err) == (1, True)
    assert len(ottla.ok("acls", "remove", "--cluster", "--yes", "--json").json) == 2
    gone = ottla("acls", "remove", "--cluster", "--yes")
    assert gone.status == 1
    assert "there is no such ACL" in gone.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["add", "--topic", "t", "-o", "read"], "name a --principal"),
        (["add", "-p", "a", "-o", "read"], "name a --topic"),
        (["add", "-p", "a", "--topic", "t"], "name an --operation"),
        (["add", "-p", "a", "--topic", "t", "-o", "reed"], "did you mean read"),
        (["add", "-p", "a", "--topic", "t", "-o", "cluster-action"], "means nothing for a topic"),
        (["add", "-p", "a", "--consumer", "--topic", "t"], "needs a --group"),
        (["add", "-p", "a", "--producer", "--topic", "t", "--deny"], "without --operation and --deny"),
        (["remove"], "name a --principal or a resource"),
    ],
)
def test_what_makes_no_sense_is_refused(ottla: CommandLine, arguments: list[str], hint: str) -> None:
    refused = ottla("acls", *arguments)
    assert refused.status == 2
    assert hint in refused.err


def test_a_node_without_an_authorizer_says_so(node_for_commands: LocalNode) -> None:
    refused = CommandLine(node_for_commands.bootstrap_servers)("acls", "list")
    assert refused.status == 1
    assert "No Authorizer is configured" in refused.err


@pytest.mark.kafka
def test_kafkas_own_tool(node: LocalNode, ottla: CommandLine) -> None:
    def tool(*arguments: str) -> str:
        command = ("--bootstrap-server", node.bootstrap_servers, *arguments)
        return java.run_tool("org.apache.kafka.tools.AclCommand", *command).out

    tool("--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "g")
    tool(
        *("--add", "--deny-principal", "User:bob", "--operation", "Write", "--topic", "ord"),
        *("--resource-pattern-type", "prefixed", "--deny-host", "10.0.0.9"),
    )
    assert rows(ottla) == [
        ("topic", "ord", "prefixed", "User:bob", "deny", "write", "10.0.0.9"),
        ("topic", "orders", "literal", "User:alice", "allow", "read", "*"),
        ("topic", "orders", "literal", "User:alice", "allow", "describe", "*"),
        ("group", "g", "literal", "User:alice", "allow", "read", "*"),
    ]
    listed = tool("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "(principal=User:bob, host=10.0.0.9, operation=WRITE, permissionType=DENY)" in listed
    tool("--remove", "--force", "--topic", "orders")
    assert {row[1] for row in rows(ottla)} == {"ord", "g"}
