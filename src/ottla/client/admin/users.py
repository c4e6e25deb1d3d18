"""SCRAM users: the credentials that a cluster keeps in its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ottla.client.admin.requests import AdminRequests
from ottla.protocol import scram
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    UserName,
)
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import Random


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """A user, and the iterations of each mechanism that it can log in with, such as `SCRAM-SHA-512`."""

    name: str
    mechanisms: Mapping[str, int]


_Users: TypeAlias = list[UserCredentials]


class UsersAdmin:
    __slots__ = ("_random", "_requests")

    def __init__(self, caller: AdminRequests, random: Random) -> None:
        self._requests = caller
        self._random = random

    async def list(self) -> list[UserCredentials]:
        """All users that have SCRAM credentials."""
        return await self._describe(None)

    async def describe(self, name: str) -> UserCredentials:
        """One user; RESOURCE_NOT_FOUND if it has no SCRAM credentials."""
        (found,) = await self._describe([name])
        return found

    async def _describe(self, names: Iterable[str] | None) -> _Users:
        users = None if names is None else [UserName(name=name) for name in names]
        answer = await self._requests.any(
            DescribeUserScramCredentialsRequest(users=users), DescribeUserScramCredentialsResponse
        )
        self._requests.raise_error(answer, "SCRAM users")
        for result in answer.results:
            self._requests.raise_error(result, f"user {result.user!r}")
        return sorted(
            (
                UserCredentials(
                    result.user,
                    {_mechanism_name(kind): iterations for kind, iterations in _mechanisms(result)},
                )
                for result in answer.results
            ),
            key=lambda user: user.name,
        )

    async def set_password(
        self,
        name: str,
        password: str,
        *,
        mechanism: str = "SCRAM-SHA-512",
        iterations: int = scram.DEFAULT_ITERATIONS,
    ) -> None:
        """Let a user, new or not, log in with this password. The cluster gets a salted form of it only."""
        kind = _mechanism(mechanism)
        salt = scram.salt_of(self._random.randbytes(scram.SALT_BYTES))
        if not scram.MIN_ITERATIONS <= iterations <= scram.MAX_ITERATIONS:
            raise KafkaError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"user {name!r}: iterations are {scram.MIN_ITERATIONS} to {scram.MAX_ITERATIONS}, "
                f"not {iterations}",
            )
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=kind,
            iterations=iterations,
            salt=salt,
            salted_password=scram.salted_password(kind, password, salt, iterations),
        )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=[upsertion]))

    async def remove(self, name: str, *, mechanism: str) -> None:
        """Remove a user's credential of one mechanism; RESOURCE_NOT_FOUND if there is none. Its connections
        stay until they end by themselves.
        """
        deletion = ScramCredentialDeletion(name=name, mechanism=_mechanism(mechanism))
        await self._alter(AlterUserScramCredentialsRequest(deletions=[deletion]))

    async def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        answer = await self._requests.controller(
            request,
            AlterUserScramCredentialsResponse,
            lambda response: [result.error_code for result in response.results],
        )
        for result in answer.results:
            error = self._requests.error_of(result, f"user {result.user!r}")
            if error is not None:
                raise error


def _mechanism(name: str) -> ScramMechanism:
    found = ScramMechanism.of_name(name.upper())
    if found is None:
        known = ", ".join(each.mechanism_name for each in ScramMechanism)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"{name!r} is no mechanism of SCRAM; there are {known}"
        )
    return found


def _mechanism_name(number: int) -> str:
    mechanism = ScramMechanism.of_type(number)
    return f"mechanism {number}" if mechanism is None else mechanism.mechanism_name


def _mechanisms(result: DescribeUserScramCredentialsResult) -> list[tuple[int, int]]:
    """The mechanisms of a user, in their order and not in that of the answer, with the iterations of each."""
    return sorted((each.mechanism, each.iterations) for each in result.credential_infos)
