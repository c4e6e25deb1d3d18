"""The reference of the Python clients, from signatures and docstrings: `python -m tests.support.api_docs`.

A test compares the page with the code, so neither can change alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.client import bulk, errors
from ottla.client.admin import Admin, AdminConfig
from ottla.client.admin.acls import AclsAdmin
from ottla.client.admin.cluster import ClusterAdmin
from ottla.client.admin.configs import ConfigsAdmin
from ottla.client.admin.groups import GroupsAdmin
from ottla.client.admin.log_dirs import LogDirsAdmin
from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.partitions import PartitionsAdmin
from ottla.client.admin.quotas import QuotasAdmin
from ottla.client.admin.tokens import DelegationTokensAdmin
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.admin.transactions import TransactionsAdmin
from ottla.client.admin.users import UsersAdmin
from ottla.client.consumer import Consumer, ConsumerConfig, ConsumerRecord, RebalanceListener, Stalled
from ottla.client.consumer.group_membership import MembershipOwner
from ottla.client.producer import Delivery, Producer, ProducerConfig, RecordMetadata, SentBatch
from ottla.client.producer.transaction_manager import Transaction, Transactions
from ottla.client.settings import dotted
from ottla.client.share import (
    AcknowledgeType,
    DamagedBatch,
    RecordDeserializationFailed,
    ShareConsumer,
    ShareConsumerConfig,
    ShareRecord,
    WorkerResults,
)

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "api.md"
TITLE = """\
# Reference of the Python clients

Written from the docstrings by `python -m tests.support.api_docs`. What is `async` has to be awaited;
`ottla.blocking` has the same calls for code without a loop. The [guide](guide.md) shows how they go together.
"""
ADMIN_GROUPS = {
    "topics": TopicsAdmin,
    "partitions": PartitionsAdmin,
    "configs": ConfigsAdmin,
    "offsets": OffsetsAdmin,
    "groups": GroupsAdmin,
    "transactions": TransactionsAdmin,
    "users": UsersAdmin,
    "quotas": QuotasAdmin,
    "acls": AclsAdmin,
    "tokens": DelegationTokensAdmin,
    "log_dirs": LogDirsAdmin,
    "cluster": ClusterAdmin,
}
_FOR_WORKERS = {"take_for_workers", "send_acknowledgements", "note_poll"}
_INSIDE = {name for name in vars(MembershipOwner) if not name.startswith("_")}


def render() -> str:
    return (
        "\n".join([TITLE, *_producer(), *_consumer(), *_share_consumer(), *_bulk(), *_admin(), *_errors()])
        + "\n"
    )


def _producer() -> Iterator[str]:
    yield from _class(Producer)
    yield from _class(Transactions, "producer.transactions")
    yield from _class(Transaction)
    for kind in (Delivery, RecordMetadata, SentBatch):
        yield from _class(kind)
    yield from _settings("Settings of a producer", ProducerConfig)


def _consumer() -> Iterator[str]:
    yield from _class(Consumer, leave_out=_INSIDE)
    yield from _class(RebalanceListener)
    yield from _class(Stalled)
    yield f"### ConsumerRecord\n\n{inspect.getdoc(ConsumerRecord)}\n"
    yield from _settings("Settings of a consumer", ConsumerConfig)


def _share_consumer() -> Iterator[str]:
    yield from _class(ShareConsumer, leave_out=_FOR_WORKERS)
    for kind in (ShareRecord, AcknowledgeType, WorkerResults, RecordDeserializationFailed, DamagedBatch):
        yield f"### {kind.__name__}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n"
    yield from _settings("Settings of a share consumer", ShareConsumerConfig)


def _bulk() -> Iterator[str]:
    yield "## Whole topics\n"
    for name in bulk.__all__:
        call = getattr(bulk, name)
        signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(call)))
        yield f"### {name}\n\n`async {name}{signature}`\n\n{inspect.getdoc(call)}\n"


def _admin() -> Iterator[str]:
    yield from _class(Admin, leave_out=set(ADMIN_GROUPS))
    for name, kind in ADMIN_GROUPS.items():
        yield from _class(kind, f"admin.{name}")
    yield from _settings("Settings of an admin client", AdminConfig)


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    for name in errors.__all__:
        kind = getattr(errors, name)
        yield f"- **`{name}`** ({kind.CODE.name}): {_paragraph(inspect.getdoc(kind))}"


def _class(kind: type, name: str | None = None, leave_out: set[str] = frozenset()) -> Iterator[str]:  # type: ignore[assignment]
    level = "##" if kind in (Producer, Consumer, ShareConsumer, Admin) else "###"
    yield f"{level} {name or kind.__name__}\n"
    own = kind.__doc__ if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") else None
    if own is not None:
        yield f"{inspect.cleandoc(own)}\n"
    calls = [
        (attribute, member)
        for attribute, member in vars(kind).items()
        if not attribute.startswith("_") and attribute not in leave_out
    ]
    lines = [line for attribute, member in calls if (line := _call(attribute, member)) is not None]
    if lines:
        yield "\n".join(lines) + "\n"


def _call(name: str, member: Any) -> str | None:
    if isinstance(member, property):
        return f"- **`{name}`** {_paragraph(inspect.getdoc(member))}".rstrip()
    if not inspect.isfunction(member):
        return None
    signature = inspect.signature(member)
    shown = signature.replace(parameters=list(signature.parameters.values())[1:])
    prefix = "async " if inspect.iscoroutinefunction(member) else ""
    text = re.sub(r"'([^']*)'", r"\1", str(shown))
    return f"- **`{prefix}{name}{text}`** {_paragraph(inspect.getdoc(member))}".rstrip()


def _settings(title: str, kind: type) -> Iterator[str]:
    yield f"### {title}\n\n{_paragraph(kind.__doc__)}\n"
    rows = ["| keyword | Kafka's name | default |", "|---|---|---|"]
    rows += [
        f"| `{field.name}` | `{dotted(field.name)}` | `{field.default!r}` |"
        for field in dataclasses.fields(kind)
        if field.name != "security"
    ]
    security = ("security.protocol", "ssl.*", "sasl.*")
    rows.append(f"| {', '.join(f'`{name}`' for name in security)} | | see [security.md](../security.md) |")
    yield "\n".join(rows) + "\n"


def _paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text).split()) if text else ""


if __name__ == "__main__":
    PAGE.write_text(render())
