"""The controller's decisions on client quotas: what is written, and what is refused."""

from __future__ import annotations

import math

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from ottla.runtime.steps import run_at_once
from tests.metadata.controller_harness import ControllerHarness

ALICE = (("user", "alice"),)


def entry(entity: dict[str, str | None], **values: float | None) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=type, entity_name=name) for type, name in entity.items()],
        ops=[OpData(key=k, value=v or 0.0, remove=v is None) for k, v in values.items()],
    )


def alter(
    world: ControllerHarness, *entries: AlterClientQuotasRequestEntryData, validate_only: bool = False
) -> list[int]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return [each.error_code for each in world.do(world.controller.alter_client_quotas(request)).entries]


@pytest.fixture
def world() -> ControllerHarness:
    return ControllerHarness()


def test_a_request_that_is_repeated_writes_nothing(world: ControllerHarness) -> None:
    assert alter(world, entry({"user": "alice"}, producer_byte_rate=10.0)) == [0]
    written = len(world.log)
    assert alter(world, entry({"user": "alice"}, producer_byte_rate=10.0)) == [0]
    assert len(world.log) == written
    assert alter(world, entry({"user": "alice"}, consumer_byte_rate=None)) == [0]
    assert len(world.log) == written
    assert world.image.client_quotas == {ALICE: {"producer_byte_rate": 10.0}}
    assert alter(world, entry({"user": "alice"}, producer_byte_rate=None)) == [0]
    assert world.image.client_quotas == {}


def test_the_order_of_user_and_client_id_does_not_matter(world: ControllerHarness) -> None:
    alter(world, entry({"user": "alice", "client-id": None}, producer_byte_rate=10.0))
    alter(world, entry({"client-id": None, "user": "alice"}, producer_byte_rate=None))
    assert world.image.client_quotas == {}


def test_validation_alone_changes_nothing(world: ControllerHarness) -> None:
    assert alter(world, entry({"user": "alice"}, producer_byte_rate=10.0), validate_only=True) == [0]
    assert world.image.client_quotas == {}


def test_an_entity_changes_as_a_whole_or_not_at_all(world: ControllerHarness) -> None:
    codes = alter(
        world,
        entry({"user": "alice"}, producer_byte_rate=10.0, consumer_byte_rate=0.5),
        entry({"user": "bob"}, producer_byte_rate=10.0),
    )
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert world.image.client_quotas == {(("user", "bob"),): {"producer_byte_rate": 10.0}}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf])
def test_a_quota_is_above_zero(world: ControllerHarness, value: float) -> None:
    refused = entry({"user": "alice"})
    refused.ops = [OpData(key="request_percentage", value=value)]
    assert alter(world, refused) == [ErrorCode.INVALID_REQUEST]


def test_a_request_for_too_much_is_refused_as_a_whole(world: ControllerHarness) -> None:
    many = [entry({"client-id": str(number)}, producer_byte_rate=1.0) for number in range(10_001)]
    with pytest.raises(KafkaError) as error:
        run_at_once(world.controller.alter_client_quotas(AlterClientQuotasRequest(entries=many)))
    assert error.value.code is ErrorCode.POLICY_VIOLATION
    assert world.image.client_quotas == {}
