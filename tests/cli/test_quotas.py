"""`ottla quotas`: list, set and remove."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.command_line import CommandLine

MUCH = 10**15


@pytest.mark.witness
def test_quotas_are_set_listed_and_removed(ottla: CommandLine) -> None:
    user = f"u-{uuid4().hex}"
    set_one = ottla.ok(
        "quotas", "set", "--user", user, f"producer_byte_rate={MUCH}", "request_percentage=1e9"
    )
    assert set_one.out == f"user {user}: producer_byte_rate={MUCH}, request_percentage=1000000000\n"
    ottla.ok("quotas", "set", "--user", user, "--default-client-id", f"consumer_byte_rate={MUCH}")
    listed = ottla.ok("quotas", "list", "--user", user, "--json").json
    assert listed == [
        {"entity": {"user": user}, "quotas": {"producer_byte_rate": MUCH, "request_percentage": 1e9}},
        {"entity": {"user": user, "client-id": None}, "quotas": {"consumer_byte_rate": MUCH}},
    ]
    table = ottla.ok("quotas", "list", "--user", user, "--strict").out
    assert [line.split() for line in table.splitlines()] == [
        ["ENTITY", "QUOTA", "VALUE"],
        ["user", user, "producer_byte_rate", str(MUCH)],
        ["user", user, "request_percentage", "1000000000"],
    ]
    ottla.ok("quotas", "remove", "--user", user, "request_percentage")
    ottla.ok("quotas", "remove", "--user", user, "--dry-run")
    assert ottla.ok("quotas", "list", "--user", user, "--strict", "--json").json == [
        {"entity": {"user": user}, "quotas": {"producer_byte_rate": MUCH}}
    ]
    ottla.ok("quotas", "remove", "--user", user)
    ottla.ok("quotas", "remove", "--user", user, "--default-client-id")
    assert ottla.ok("quotas", "list", "--user", user, "--json").json == []
    none_left = ottla("quotas", "remove", "--user", user)
    assert none_left.status == 1
    assert "has no quotas of its own" in none_left.err


def test_an_address_has_a_rate_of_connections(ottla: CommandLine) -> None:
    ottla.ok("quotas", "set", "--ip", "192.0.2.1", "connection_creation_rate=1000000")
    listed = ottla.ok("quotas", "list", "--ip", "192.0.2.1", "--json").json
    assert listed == [{"entity": {"ip": "192.0.2.1"}, "quotas": {"connection_creation_rate": 1e6}}]
    ottla.ok("quotas", "remove", "--ip", "192.0.2.1")


def test_what_the_broker_refuses_is_shown(ottla: CommandLine) -> None:
    refused = ottla("quotas", "set", "--user", "u", "producer_byte_rate=0")
    assert refused.status == 1
    assert "producer_byte_rate must be greater than 0" in refused.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("set", "producer_byte_rate=1"), "name a --user"),
        (("set", "--user", "u", "producer_byte_rat=1"), "did you mean producer_byte_rate"),
        (("set", "--user", "u", "producer_byte_rate"), "NAME=VALUE"),
        (("set", "--user", "u", "producer_byte_rate=much"), "expected a number"),
        (("set", "--user", "u", "--default-user", "producer_byte_rate=1"), "one of --user"),
        (("set", "--ip", "192.0.2.1", "--user", "u", "connection_creation_rate=1"), "of its own"),
        (("remove", "--ip", "192.0.2.1", "producer_byte_rate"), "there is no quota producer_byte_rate"),
    ],
)
def test_a_mistake_is_explained_without_a_broker(
    offline: CommandLine, arguments: tuple[str, ...], hint: str
) -> None:
    ended = offline("quotas", *arguments)
    assert ended.status == 2
    assert hint in ended.err
