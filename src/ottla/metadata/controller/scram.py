"""ScramControlManager: the SCRAM credentials of users.

A request may change each user once: a second change of the same user, also of another mechanism, fails both.
The salted password of a request is what a client could log in with, so it does not go into the log: the keys
that are made of it do.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ottla.metadata.controller.state import (
    NO_ERROR,
    ApiError,
    ControllerState,
    Decision,
    Result,
    check_record_count,
)
from ottla.metadata.image.entities import ScramCredential, ScramUser
from ottla.metadata.records import MetadataRecord
from ottla.protocol import scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.metadata_records import RemoveUserScramCredentialRecord
from ottla.protocol.scram import ScramMechanism

_Alteration: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion

_TWICE: Final = ApiError(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)
_NOT_SUPPORTED: Final = ApiError(
    ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM"
)


def alter_user_scram_credentials(
    state: ControllerState, request: AlterUserScramCredentialsRequest
) -> Decision[AlterUserScramCredentialsResponse]:
    changes: dict[str, MetadataRecord] = {}
    errors: dict[str, ApiError] = {}
    alterations: list[_Alteration] = [*request.deletions, *request.upsertions]
    for asked in alterations:
        yield
        name = asked.name
        if name in errors:
            continue
        if changes.pop(name, None) is not None:
            errors[name] = _TWICE
            continue
        error = _check(state, asked)
        if error.failed:
            errors[name] = error
        else:
            changes[name] = _record(asked)
    check_record_count(list(changes.values()))
    response = AlterUserScramCredentialsResponse()
    for name, error in (dict.fromkeys(changes, NO_ERROR) | errors).items():
        response.results.append(
            AlterUserScramCredentialsResult(
                user=name, error_code=int(error.code), error_message=error.message
            )
        )
        yield
    return Result(list(changes.values()), response)


def _check(state: ControllerState, asked: _Alteration) -> ApiError:
    if not state.version.scram:
        return _NOT_SUPPORTED
    if not asked.name:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = ScramMechanism.of_type(asked.mechanism)
    if mechanism is None:
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(asked, ScramCredentialDeletion):
        if ScramUser(mechanism, asked.name) not in state.image.scram:
            return ApiError(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
    elif asked.iterations < scram.MIN_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif asked.iterations > scram.MAX_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    elif not asked.salted_password:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    return NO_ERROR


def _record(asked: _Alteration) -> MetadataRecord:
    if isinstance(asked, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=asked.name, mechanism=asked.mechanism)
    mechanism = ScramMechanism(asked.mechanism)
    credential = scram_credential(mechanism, asked.salt, asked.salted_password, asked.iterations)
    return credential.to_record(ScramUser(mechanism, asked.name))


def scram_credential(
    mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """What a broker keeps of a password."""
    stored = scram.stored_key(mechanism, scram.client_key(mechanism, salted_password))
    return ScramCredential(bytes(salt), stored, scram.server_key(mechanism, salted_password), iterations)
