"""`ottla acls`: who may do what with which resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from ottla.cli.commands import Option, command, group
from ottla.cli.errors import CliError, WrongUsage, did_you_mean
from ottla.cli.options import (
    COMMON,
    Common,
    DryRun,
    Yes,
)
from ottla.cli.output import print_json, print_table
from ottla.cli.session import confirm, with_admin
from ottla.protocol.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.acls import AclBinding, AclBindingFilter

HELP: Final = "List, add and remove ACLs: who may do what with which resource."
app = group("acls", HELP)

Principals = Annotated[
    list[str] | None,
    Option("--principal", "-p", metavar="USER", help="A user, as alice or User:alice; * is everyone."),
]
Topics = Annotated[list[str] | None, Option("--topic", "-t", metavar="NAME", help="A topic; * is every one.")]
Groups = Annotated[list[str] | None, Option("--group", "-g", metavar="ID", help="A group; * is every one.")]
TransactionalIds = Annotated[
    list[str] | None, Option("--transactional-id", metavar="ID", help="A transactional id; * is every one.")
]
Users = Annotated[
    list[str] | None,
    Option("--user-principal", metavar="USER", help="A user whose delegation tokens are meant."),
]
Cluster = Annotated[bool, Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, Option("--prefixed", help="All resources whose names begin with the given ones.")]
Operations = Annotated[
    list[str] | None,
    Option("--operation", "-o", metavar="OPERATION", help="Such as read, write or describe; all for all."),
]
Hosts = Annotated[
    list[str] | None, Option("--host", metavar="ADDRESS", help="The address of clients; without it, any.")
]
Deny = Annotated[bool, Option("--deny", help="Deny it: that wins over all that allow it.")]
ForProducer = Annotated[
    bool,
    Option(
        "--producer", help="What a producer needs: write, describe and create topics; its --transactional-id."
    ),
]
ForConsumer = Annotated[
    bool, Option("--consumer", help="What a consumer needs of its --topic and its --group.")
]

_OPERATIONS: Final = {
    each.name.lower().replace("_", "-"): each for each in AclOperation if each is not AclOperation.ANY
}
_Resource = tuple[AclResourceType, str]
T = TypeVar("T")


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _operation(text: str) -> AclOperation:
    name = text.lower().replace("_", "-")
    found = _OPERATIONS.get(name)
    if found is None:
        hint = did_you_mean(name, _OPERATIONS) or f"; there are {', '.join(_OPERATIONS)}"
        raise WrongUsage(f"there is no operation {text}{hint}")
    return found


def _resources(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    users: list[str] | None,
    cluster: bool,
) -> list[_Resource]:
    named = [(AclResourceType.TOPIC, name) for name in topics or ()]
    named += [(AclResourceType.GROUP, name) for name in groups or ()]
    named += [(AclResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids or ()]
    named += [(AclResourceType.USER, _principal(name)) for name in users or ()]
    if cluster:
        named.append((AclResourceType.CLUSTER, CLUSTER_NAME))
    return named


def _or_any(named: Sequence[T] | None) -> Sequence[T | None]:
    """What was named, or None for any."""
    return named or [None]


def _pattern(resource: _Resource, prefixed: bool) -> PatternType:
    kind, name = resource
    if not prefixed or kind is AclResourceType.CLUSTER or name == "*":
        return PatternType.LITERAL
    return PatternType.PREFIXED


def _bindings(
    resources: list[_Resource],
    principals: list[str] | None,
    operations: list[str] | None,
    hosts: list[str] | None,
    *,
    producer: bool,
    consumer: bool,
    prefixed: bool,
    deny: bool,
) -> list[AclBinding]:
    """The ACLs that the options name."""
    from ottla.client.admin.acls import AclBinding

    if not principals:
        raise WrongUsage("name a --principal")
    if not resources:
        raise WrongUsage("name a --topic, a --group, a --transactional-id, a --user-principal or --cluster")
    kinds = {kind for kind, _ in resources}
    if producer or consumer:
        if operations or deny:
            raise WrongUsage("--producer and --consumer allow what is needed: without --operation and --deny")
        if AclResourceType.TOPIC not in kinds:
            raise WrongUsage("--producer and --consumer need a --topic")
        if consumer and AclResourceType.GROUP not in kinds:
            raise WrongUsage("--consumer needs a --group")
        wanted = [
            (resource, each) for resource in resources for each in _needed(resource, producer, consumer)
        ]
    else:
        if not operations:
            raise WrongUsage("name an --operation, or --producer or --consumer")
        wanted = [(resource, _operation(text)) for resource in resources for text in operations]
        for (kind, _), operation in wanted:
            if operation is not AclOperation.ALL and operation not in SUPPORTED_OPERATIONS[kind]:
                names = ", ".join(each.name.lower().replace("_", "-") for each in SUPPORTED_OPERATIONS[kind])
                what = kind.name.lower().replace("_", " ")
                raise WrongUsage(f"{operation.name.lower()} means nothing for a {what}; there are {names}")
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return [
        AclBinding(
            _principal(principal),
            operation,
            resource[0],
            resource[1],
            _pattern(resource, prefixed),
            permission,
            host,
        )
        for principal in principals
        for resource, operation in dict.fromkeys(wanted)
        for host in hosts or ["*"]
    ]


def _needed(resource: _Resource, producer: bool, consumer: bool) -> list[AclOperation]:
    """What a producer or a consumer needs of a resource, as Kafka's own tool grants it."""
    kind, _ = resource
    needed: list[AclOperation] = []
    if producer and kind is AclResourceType.TOPIC:
        needed += [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE]
    if producer and kind is AclResourceType.TRANSACTIONAL_ID:
        needed += [AclOperation.WRITE, AclOperation.DESCRIBE]
    if producer and kind is AclResourceType.CLUSTER:
        needed.append(AclOperation.IDEMPOTENT_WRITE)
    if consumer and kind is AclResourceType.TOPIC:
        needed += [AclOperation.READ, AclOperation.DESCRIBE]
    if consumer and kind is AclResourceType.GROUP:
        needed.append(AclOperation.READ)
    return needed


@command(app, "list")
def list_acls(
    principals: Principals = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    cluster: Cluster = False,
    exact: Annotated[
        bool, Option("--exact", help="Only those of exactly these names, not all that apply to them.")
    ] = False,
    common: Common = COMMON,
) -> None:
    """List ACLs: all, or those that apply to resources, by their names, their prefixes and as one of all."""
    from ottla.client.admin.acls import AclBindingFilter

    pattern = PatternType.ANY if exact else PatternType.MATCH
    resources = _resources(topics, groups, transactional_ids, users, cluster)
    wanted = [
        AclBindingFilter(
            principal=None if who is None else _principal(who),
            resource_type=AclResourceType.ANY if resource is None else resource[0],
            resource_name=None if resource is None else resource[1],
            pattern_type=PatternType.ANY if resource is None else pattern,
        )
        for who in _or_any(principals)
        for resource in _or_any(resources)
    ]

    async def work(admin: Admin) -> list[AclBinding]:
        found: dict[AclBinding, None] = {}
        for each in wanted:
            found.update(dict.fromkeys(await admin.acls.describe(each)))
        return list(found)

    _show(with_admin(common, work), as_json=common.as_json)


@command(app, "add")
def add_acls(
    principals: Principals = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    cluster: Cluster = False,
    producer: ForProducer = False,
    consumer: ForConsumer = False,
    prefixed: Prefixed = False,
    hosts: Hosts = None,
    deny: Deny = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Add ACLs: let principals do operations with resources, or deny it.

    \b
    ottla acls add --principal alice --producer --topic orders
    ottla acls add --principal bob --consumer --topic orders --group billing
    ottla acls add --principal bob --operation read --topic secret. --prefixed --deny
    """
    bindings = _bindings(
        _resources(topics, groups, transactional_ids, users, cluster),
        principals,
        operations,
        hosts,
        producer=producer,
        consumer=consumer,
        prefixed=prefixed,
        deny=deny,
    )

    async def work(admin: Admin) -> None:
        if not dry_run:
            await admin.acls.create(bindings)

    with_admin(common, work)
    _show(bindings, as_json=common.as_json)


@command(app, "remove")
def remove_acls(
    principals: Principals = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    users: Users = None,
    cluster: Cluster = False,
    producer: ForProducer = False,
    consumer: ForConsumer = False,
    prefixed: Prefixed = False,
    hosts: Hosts = None,
    deny: Deny = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Remove ACLs: those that `add` with the same options adds, or without an operation all of a principal,
    of resources, or of both.
    """
    resources = _resources(topics, groups, transactional_ids, users, cluster)
    filters = _filters(
        resources,
        principals,
        operations,
        hosts,
        producer=producer,
        consumer=consumer,
        prefixed=prefixed,
        deny=deny,
    )

    async def find(admin: Admin) -> list[AclBinding]:
        found: dict[AclBinding, None] = {}
        for each in filters:
            found.update(dict.fromkeys(await admin.acls.describe(each)))
        return list(found)

    async def work(admin: Admin) -> list[AclBinding]:
        return await admin.acls.delete(filters)

    found = with_admin(common, find)
    if not found:
        raise CliError("there is no such ACL")
    if not dry_run:
        whose = ", ".join(sorted({acl.principal for acl in found}))
        confirm(f"Remove {len(found)} ACL{'s' * (len(found) != 1)} of {whose}?", yes=yes)
        found = with_admin(common, work)
    _show(found, as_json=common.as_json)


def _filters(
    resources: list[_Resource],
    principals: list[str] | None,
    operations: list[str] | None,
    hosts: list[str] | None,
    *,
    producer: bool,
    consumer: bool,
    prefixed: bool,
    deny: bool,
) -> list[AclBindingFilter]:
    from ottla.client.admin.acls import AclBindingFilter

    if operations or producer or consumer:
        exact = _bindings(
            resources,
            principals,
            operations,
            hosts,
            producer=producer,
            consumer=consumer,
            prefixed=prefixed,
            deny=deny,
        )
        return [
            AclBindingFilter(
                acl.principal,
                acl.operation,
                acl.resource_type,
                acl.resource_name,
                acl.pattern_type,
                acl.permission_type,
                acl.host,
            )
            for acl in exact
        ]
    if not resources and not principals:
        raise WrongUsage("name a --principal or a resource; to remove all ACLs would let no one in")
    return [
        AclBindingFilter(
            principal=None if who is None else _principal(who),
            resource_type=AclResourceType.ANY if resource is None else resource[0],
            resource_name=None if resource is None else resource[1],
            pattern_type=PatternType.ANY if resource is None else _pattern(resource, prefixed),
            permission_type=AclPermissionType.DENY if deny else AclPermissionType.ANY,
            host=host,
        )
        for who in _or_any(principals)
        for resource in _or_any(resources)
        for host in _or_any(hosts)
    ]


def _row(acl: AclBinding) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type.name.lower().replace("_", "-"),
        "resource_name": acl.resource_name,
        "pattern": acl.pattern_type.name.lower(),
        "principal": acl.principal,
        "permission": acl.permission_type.name.lower(),
        "operation": acl.operation.name.lower().replace("_", "-"),
        "host": acl.host,
    }


def _show(acls: list[AclBinding], *, as_json: bool) -> None:
    rows = [_row(acl) for acl in acls]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["resource", "name", "pattern", "principal", "permission", "operation", "host"],
            [list(row.values()) for row in rows],
        )
