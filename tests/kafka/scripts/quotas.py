"""AlterClientQuotas and DescribeClientQuotas: entities, filters, and what is refused."""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.kafka.scripts.kit import script
from tests.support.differential import Session

EXACT, DEFAULT, ANY = 0, 1, 2
Names = dict[str, str | None]
Values = dict[str, float | None]

# Quotas of 10**15 hold no test up that runs on the same brokers.
MUCH = 1e15
ENTITIES: list[tuple[Names, Values]] = [
    ({"user": "quotas-u1"}, {"producer_byte_rate": MUCH, "consumer_byte_rate": MUCH + 1}),
    ({"user": "quotas-u2"}, {"request_percentage": 1e9 + 0.5}),
    ({"user": None}, {"controller_mutation_rate": 1e9 + 0.25}),
    ({"client-id": "quotas-c1"}, {"producer_byte_rate": MUCH}),
    ({"client-id": None}, {"producer_byte_rate": MUCH + 2}),
    ({"user": "quotas-u1", "client-id": "quotas-c1"}, {"consumer_byte_rate": MUCH + 3}),
    ({"user": "quotas-u1", "client-id": None}, {"consumer_byte_rate": MUCH + 4}),
    ({"user": None, "client-id": "quotas-c1"}, {"consumer_byte_rate": MUCH + 5}),
    ({"user": None, "client-id": None}, {"consumer_byte_rate": MUCH + 6}),
    ({"user": "quotas: \u00e9 %2A*/", "client-id": "a b&c=d"}, {"producer_byte_rate": MUCH}),
    ({"ip": "192.0.2.7"}, {"connection_creation_rate": 1e9}),
    ({"ip": "2001:db8::7"}, {"connection_creation_rate": 1e9}),
    ({"ip": None}, {"connection_creation_rate": 1e9 + 1}),
]
FILTERS: dict[str, list[tuple[str, int, str | None]]] = {
    "all": [],
    "user u1": [("user", EXACT, "quotas-u1")],
    "user that has none": [("user", EXACT, "quotas-u9")],
    "default user": [("user", DEFAULT, None)],
    "any user": [("user", ANY, None)],
    "client c1": [("client-id", EXACT, "quotas-c1")],
    "any client": [("client-id", ANY, None)],
    "u1 and c1": [("user", EXACT, "quotas-u1"), ("client-id", EXACT, "quotas-c1")],
    "u1 and any": [("user", EXACT, "quotas-u1"), ("client-id", ANY, None)],
    "both default": [("user", DEFAULT, None), ("client-id", DEFAULT, None)],
    "ip": [("ip", EXACT, "192.0.2.7")],
    "any ip": [("ip", ANY, None)],
    "default ip": [("ip", DEFAULT, None)],
    "ip and user": [("ip", ANY, None), ("user", ANY, None)],
    "exact without a name": [("user", EXACT, None)],
    "default with a name": [("user", DEFAULT, "a")],
    "any with a name": [("user", ANY, "a")],
    "empty type": [("", EXACT, "a")],
    "unknown type": [("topic", EXACT, "a")],
    "type twice": [("user", EXACT, "a"), ("user", ANY, None)],
    "unknown match": [("user", 3, None)],
}
REFUSED: dict[str, tuple[Names, Values]] = {
    "no entity": ({}, {"producer_byte_rate": 1.0}),
    "unknown type": ({"topic": "t"}, {"producer_byte_rate": 1.0}),
    "empty name": ({"user": ""}, {"producer_byte_rate": 1.0}),
    "unknown key": ({"user": "quotas-r"}, {"bytes": 1.0}),
    "key of an address": ({"user": "quotas-r"}, {"connection_creation_rate": 1.0}),
    "key of a client": ({"ip": "192.0.2.8"}, {"producer_byte_rate": 1.0}),
    "address and user": ({"ip": "192.0.2.8", "user": "u"}, {"connection_creation_rate": 1.0}),
    "not an address": ({"ip": "no such host."}, {"connection_creation_rate": 1.0}),
    "zero": ({"user": "quotas-r"}, {"producer_byte_rate": 0.0}),
    "negative": ({"user": "quotas-r"}, {"request_percentage": -1.0}),
    "fraction": ({"user": "quotas-r"}, {"producer_byte_rate": 1.5}),
    "fraction of an int": ({"ip": "192.0.2.8"}, {"connection_creation_rate": 1.5}),
    "too large": ({"user": "quotas-r"}, {"consumer_byte_rate": 1e19}),
    "too large for an int": ({"ip": "192.0.2.8"}, {"connection_creation_rate": 3e9}),
    "unknown key beside a known one": ({"user": "quotas-r"}, {"producer_byte_rate": 1.0, "bytes": 1.0}),
    "removal of an unknown key": ({"user": "quotas-r"}, {"bytes": None}),
    "nothing to change": ({"user": "quotas-r"}, {}),
}


def _entry(names: Names, values: Values) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=type, entity_name=name) for type, name in names.items()],
        ops=[
            OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ],
    )


def _alter(*entries: tuple[Names, Values], validate_only: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=[_entry(names, values) for names, values in entries], validate_only=validate_only
    )


def _describe(parts: list[tuple[str, int, str | None]], *, strict: bool) -> DescribeClientQuotasRequest:
    components = [ComponentData(entity_type=t, match_type=m, match=name) for t, m, name in parts]
    return DescribeClientQuotasRequest(components=components, strict=strict)


def _sort(answer: Any) -> None:
    for entry in answer.entries or ():
        entry.entity.sort(key=lambda part: part.entity_type)
        if isinstance(answer, DescribeClientQuotasResponse):
            entry.values.sort(key=lambda value: value.key)
    if answer.entries:
        answer.entries.sort(
            key=lambda entry: [(part.entity_type, part.entity_name or "") for part in entry.entity]
        )


def _described(session: Session, count: int) -> None:
    session.until(
        _describe([], strict=False), DescribeClientQuotasResponse, lambda r: len(r.entries or ()) == count
    )


@script
def client_quotas(session: Session) -> None:
    for version in session.versions(AlterClientQuotasRequest):
        session.ask("only checked", _alter(*ENTITIES, validate_only=True), version, edit=_sort)
        session.ask("set", _alter(*ENTITIES), version, edit=_sort)
        _described(session, len(ENTITIES))
        session.ask("set again", _alter(*ENTITIES), version, edit=_sort)
        for label, parts in FILTERS.items():
            for strict in (False, True):
                session.ask(f"{label} strict={strict}", _describe(parts, strict=strict), version, edit=_sort)
        removals = [(names, dict.fromkeys(values)) for names, values in ENTITIES]
        session.ask("removed", _alter(*removals), version, edit=_sort)
        _described(session, 0)


@script
def client_quotas_that_are_refused(session: Session) -> None:
    for version in session.versions(AlterClientQuotasRequest):
        for label, (names, values) in REFUSED.items():
            session.ask(label, _alter((names, values)), version, edit=_sort)
        first: tuple[Names, Values] = ({"user": "quotas-d"}, {"producer_byte_rate": MUCH})
        second: tuple[Names, Values] = ({"user": "quotas-d"}, {"consumer_byte_rate": MUCH})
        session.ask("entity twice", _alter(first, second), version, edit=_sort)
        twice = _alter(({"user": "quotas-e"}, {"producer_byte_rate": MUCH}))
        twice.entries[0].ops *= 2
        session.ask("key twice", twice, version, edit=_sort)
        typed = _alter(({"user": "quotas-f"}, {"producer_byte_rate": MUCH}))
        typed.entries[0].entity.append(EntityData(entity_type="user", entity_name="quotas-g"))
        session.ask("type twice", typed, version, edit=_sort)
        bad_and_good = _alter(REFUSED["zero"], ({"user": "quotas-h"}, {"producer_byte_rate": MUCH}))
        session.ask("bad and good", bad_and_good, version, edit=_sort)
        _described(session, 3)
        session.ask("after all", _describe([], strict=False), version, edit=_sort)
        for name in "dgh":
            session.ask(
                "removed", _alter(({"user": f"quotas-{name}"}, {"producer_byte_rate": None})), version
            )
        _described(session, 0)
