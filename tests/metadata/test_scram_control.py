"""The controller's decisions about SCRAM credentials, with the answers of Kafka's controller."""

from __future__ import annotations

import pytest

from ottla.metadata.image.entities import ScramUser
from ottla.protocol import scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.scram import ScramMechanism
from tests.metadata.controller_harness import ControllerHarness

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = b"salt"


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=SALT,
        salted_password=scram.salted_password(SHA_256, "secret", SALT, 4096),
    )


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(
    harness: ControllerHarness,
    *,
    deletions: list[ScramCredentialDeletion] | None = None,
    upsertions: list[ScramCredentialUpsertion] | None = None,
) -> dict[str, tuple[ErrorCode, str | None]]:
    request = AlterUserScramCredentialsRequest(deletions=deletions or [], upsertions=upsertions or [])
    response = harness.do(harness.controller.alter_user_scram_credentials(request))
    assert len({result.user for result in response.results}) == len(response.results)
    return {each.user: (ErrorCode.of(each.error_code), each.error_message) for each in response.results}


@pytest.fixture
def harness() -> ControllerHarness:
    return ControllerHarness()


def test_users_come_and_go(harness: ControllerHarness) -> None:
    assert alter(harness, upsertions=[upsertion("alice"), upsertion("bob", SHA_512, 8192)]) == {
        "alice": (ErrorCode.NONE, None),
        "bob": (ErrorCode.NONE, None),
    }
    alice = harness.image.scram[ScramUser(SHA_256, "alice")]
    salted = scram.salted_password(SHA_256, "secret", SALT, 4096)
    assert alice.stored_key == scram.stored_key(SHA_256, scram.client_key(SHA_256, salted))
    assert alice.server_key == scram.server_key(SHA_256, salted)
    assert harness.image.scram[ScramUser(SHA_512, "bob")].iterations == 8192
    assert alter(harness, deletions=[deletion("alice")]) == {"alice": (ErrorCode.NONE, None)}
    assert set(harness.image.scram) == {ScramUser(SHA_512, "bob")}


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (upsertion("a", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion("a", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion("a", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsertion("a", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
    ],
)
def test_what_is_not_accepted(
    harness: ControllerHarness, asked: ScramCredentialUpsertion, code: ErrorCode, message: str
) -> None:
    answers = alter(harness, upsertions=[asked, upsertion("fine")])
    assert answers == {asked.name: (code, message), "fine": (ErrorCode.NONE, None)}
    assert set(harness.image.scram) == {ScramUser(SHA_256, "fine")}


def test_only_what_exists_is_deleted(harness: ControllerHarness) -> None:
    alter(harness, upsertions=[upsertion("alice")])
    message = "Attempt to delete a user credential that does not exist"
    assert alter(harness, deletions=[deletion("alice", SHA_512), deletion("bob")]) == {
        "alice": (ErrorCode.RESOURCE_NOT_FOUND, message),
        "bob": (ErrorCode.RESOURCE_NOT_FOUND, message),
    }
    assert set(harness.image.scram) == {ScramUser(SHA_256, "alice")}


def test_each_user_changes_once_in_a_request(harness: ControllerHarness) -> None:
    alter(harness, upsertions=[upsertion("alice"), upsertion("bob")])
    twice = (
        ErrorCode.DUPLICATE_RESOURCE,
        "A user credential cannot be altered twice in the same request",
    )
    answers = alter(
        harness,
        deletions=[deletion("alice"), deletion("bob"), deletion("bob"), deletion("bob")],
        upsertions=[upsertion("alice", SHA_512), upsertion("carol"), upsertion("carol", SHA_512)],
    )
    assert answers == {"alice": twice, "bob": twice, "carol": twice}
    assert set(harness.image.scram) == {ScramUser(SHA_256, "alice"), ScramUser(SHA_256, "bob")}
