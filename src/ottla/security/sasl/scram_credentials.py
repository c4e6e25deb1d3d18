"""The SCRAM users of the cluster, as the metadata of this node have them.

A controller needs its users before it has any metadata: the quorum elects a leader by requests between nodes
that have logged in. Until the first metadata are there, the users that the node was formatted with count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ottla.metadata.image.entities import ScramCredential, ScramUser
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import UserScramCredentialRecord
from ottla.protocol.scram import ScramMechanism
from ottla.security.sasl.scram_server import TokenCredential
from ottla.security.sasl.token_credentials import TokenCredentials


def users_of_records(records: Iterable[MetadataRecord]) -> dict[ScramUser, ScramCredential]:
    """The users that the records of a formatted directory make."""
    return {
        ScramUser(record.mechanism, record.name): ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )
        for record in records
        if isinstance(record, UserScramCredentialRecord)
    }


class MetadataScramCredentials:
    """`ScramCredentials` over the newest image."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        formatted: Callable[[], Mapping[ScramUser, ScramCredential]],
        tokens: TokenCredentials | None = None,
    ) -> None:
        """`tokens` are None where there are no delegation tokens."""
        self._image: Final = image
        self._formatted: Final = formatted
        self._tokens: Final = tokens
        # The users for which `_examples` were found.
        self._of_examples: Mapping[ScramUser, ScramCredential] | None = None
        self._examples: dict[ScramMechanism, ScramCredential] = {}

    def _users(self) -> Mapping[ScramUser, ScramCredential]:
        image = self._image()
        return self._formatted() if image.is_empty else image.scram

    def of_user(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        return self._users().get(ScramUser(mechanism, name))

    def of_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        if self._tokens is None:
            return None
        return self._tokens.find(self._image().delegation_tokens, mechanism, token_id)

    def example(self, mechanism: ScramMechanism) -> ScramCredential | None:
        users = self._users()
        if users is not self._of_examples:
            self._of_examples = users
            self._examples.clear()
        if mechanism not in self._examples and users:
            candidates = [user for user in users if user.mechanism == mechanism] or list(users)
            self._examples[mechanism] = users[min(candidates)]
        return self._examples.get(mechanism)
