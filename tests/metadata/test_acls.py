"""The controller's decisions on ACLs: what is written, what is not written twice, and what is too much."""

from __future__ import annotations

import pytest

from ottla.metadata.controller.state import MAX_RECORDS_PER_REQUEST
from ottla.metadata.image.acl_filter import AclFilter
from ottla.metadata.image.entities import AccessControlEntry
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.metadata.controller_harness import ControllerHarness, raise_metadata_version

EVERYTHING = AclFilter(1, None, 1, None, None, 1, 1)


@pytest.fixture
def world() -> ControllerHarness:
    return ControllerHarness()


def acl(name: str, **changes: object) -> AccessControlEntry:
    fields = {
        "resource_type": 2,
        "resource_name": name,
        "pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AccessControlEntry(**{**fields, **changes})  # type: ignore[arg-type]


def create(world: ControllerHarness, *acls: AccessControlEntry) -> list[int]:
    return [each.error_code for each in world.do(world.controller.create_acls(acls)).results]


def delete(world: ControllerHarness, *filters: AclFilter) -> list[int]:
    """How many ACLs each filter has deleted."""
    response = world.do(world.controller.delete_acls(filters))
    return [len(each.matching_acls) for each in response.filter_results]


def test_an_acl_is_written_once(world: ControllerHarness) -> None:
    assert create(world, acl("a"), acl("b"), acl("a")) == [0, 0, 0]
    assert create(world, acl("b"), acl("b", host="10.0.0.1")) == [0, 0]
    assert sorted(each.resource_name for each in world.image.acls.values()) == ["a", "b", "b"]
    # Once it is deleted it can be created again, by a controller that has seen both.
    assert delete(world, EVERYTHING) == [3]
    assert world.image.acls == {}
    assert create(world, acl("a")) == [0]
    assert list(world.image.acls.values()) == [acl("a")]


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"resource_name": ""},
        {"principal": "alice"},
    ],
)
def test_an_acl_without_sense_is_not_written(world: ControllerHarness, changes: dict[str, object]) -> None:
    assert create(world, acl("a", **changes), acl("b")) == [ErrorCode.INVALID_REQUEST, 0]
    assert list(world.image.acls.values()) == [acl("b")]


def test_ranges_of_addresses_need_the_level_of_kafka_4_4(world: ControllerHarness) -> None:
    ranges = [acl("a", host=host) for host in ("10.0.0.0/8", "192.168.1.1/32", "2001:db8::/32", "::/0")]
    assert create(world, *ranges) == [ErrorCode.UNSUPPORTED_VERSION] * 4
    raise_metadata_version(world, 32)
    assert create(world, *ranges) == [0] * 4
    assert [each.host for each in world.image.acls.values()] == [each.host for each in ranges]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.256/8",
        "10.0.0.0/",
        "10.0.0.0/abc",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/8/8",
        "2001:db8::/129",
        "fe80::1%eth0/64",
        "a.host/8",
        "/8",
        "10.0.0.0/٨",
    ],
)
def test_what_is_no_range_of_addresses_is_refused(world: ControllerHarness, host: str) -> None:
    raise_metadata_version(world, 32)
    assert create(world, acl("a", host=host)) == [ErrorCode.INVALID_REQUEST]


def test_an_acl_is_in_the_result_of_each_filter_that_matches(world: ControllerHarness) -> None:
    create(world, acl("a"), acl("b"))
    only_a = AclFilter(2, "a", 3, None, None, 1, 1)
    assert delete(world, only_a, EVERYTHING, only_a) == [1, 2, 1]
    assert world.image.acls == {}
    assert delete(world, EVERYTHING) == [0]


def test_one_request_changes_a_bounded_number(world: ControllerHarness) -> None:
    many = [acl(f"t{n}") for n in range(MAX_RECORDS_PER_REQUEST + 1)]
    with pytest.raises(KafkaError, match="at most 10000 are allowed"):
        create(world, *many)
    assert world.image.acls == {}
    create(world, *many[:-1])
    create(world, many[-1])
    with pytest.raises(KafkaError, match="Cannot remove more than 10000 acls"):
        delete(world, EVERYTHING)
    assert len(world.image.acls) == MAX_RECORDS_PER_REQUEST + 1
