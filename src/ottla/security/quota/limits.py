"""Find the quota that holds for a client, among those of users, client ids, and both.

The most specific one holds. A quota of a user is shared by all clients of that user, one of a client id by
all clients with that id, one of both by the clients that have both; a default holds for each user or client
id by itself. `QuotaTags` names those that share: of the user and the client id, the ones that count.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.metadata.image.entities import QuotaEntity
from ottla.protocol.client_quotas import CLIENT_ID, USER


class QuotaTags(NamedTuple):
    """A user, a client id, or both; the empty text is for neither."""

    user: str
    client_id: str


class _Default:
    """Stands for each user or client id without a quota of its own."""


_DEFAULT = _Default()
_Name = str | _Default | None


class QuotaLimits:
    """The values of one kind of quota, by entity. None in a key is for an entity without that part."""

    __slots__ = ("_limits",)

    def __init__(self) -> None:
        self._limits: dict[tuple[_Name, _Name], float] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        """Set the quota of an entity of users and client ids, or remove it."""
        names = dict(entity)
        key = (_name(names, USER), _name(names, CLIENT_ID))
        if limit is None:
            self._limits.pop(key, None)
        else:
            self._limits[key] = limit

    def find(self, user: str, client_id: str) -> tuple[QuotaTags, float] | None:
        """The quota of a client and those it shares it with, or None if it has no limit."""
        limits = self._limits
        for key, tags in (
            ((user, client_id), QuotaTags(user, client_id)),
            ((user, _DEFAULT), QuotaTags(user, client_id)),
            ((user, None), QuotaTags(user, "")),
            ((_DEFAULT, client_id), QuotaTags(user, client_id)),
            ((_DEFAULT, _DEFAULT), QuotaTags(user, client_id)),
            ((_DEFAULT, None), QuotaTags(user, "")),
            ((None, client_id), QuotaTags("", client_id)),
            ((None, _DEFAULT), QuotaTags("", client_id)),
        ):
            limit = limits.get(key)
            if limit is not None:
                # Clients without an id have no quotas of client ids, as in Kafka: those of users hold.
                return self._find_without_id(user) if not client_id and key[1] is not None else (tags, limit)
        return None

    def _find_without_id(self, user: str) -> tuple[QuotaTags, float] | None:
        for key in ((user, None), (_DEFAULT, None)):
            limit = self._limits.get(key)
            if limit is not None:
                return QuotaTags(user, ""), limit
        return None


def _name(names: dict[str, str | None], type: str) -> _Name:
    if type not in names:
        return None
    name = names[type]
    return _DEFAULT if name is None else name
