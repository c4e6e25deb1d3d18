"""Users, ACLs and quotas."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from ottla.client.admin.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.console.api_request import ApiRequest, JsonBody, bad_request, page_of
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.protocol import scram

E = TypeVar("E", AclOperation, AclPermissionType, AclResourceType, PatternType)

_ENTITIES: Final = ("user", "client-id", "ip")
_OPERATIONS: Final = tuple(each for each in AclOperation if each is not AclOperation.ANY)
_RESOURCES: Final = tuple(each for each in AclResourceType if each is not AclResourceType.ANY)
_PATTERNS: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_PERMISSIONS: Final = (AclPermissionType.ALLOW, AclPermissionType.DENY)


# Users


async def list_users(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    users = await (await context.access.admin()).users.list()
    chosen, page = page_of(
        request, users, name=lambda user: user.name, sorts={"name": lambda user: user.name}
    )
    page["items"] = [
        {
            "name": user.name,
            "mechanisms": [
                {"name": name, "iterations": iterations} for name, iterations in user.mechanisms.items()
            ],
        }
        for user in chosen
    ]
    return page


async def set_password(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    body = request.body()
    name, password = body.text("name"), body.text("password")
    if not name or not password:
        raise bad_request("a user needs a name and a password")
    await (await context.access.admin()).users.set_password(
        name,
        password,
        mechanism=body.text("mechanism", "SCRAM-SHA-512"),
        iterations=body.integer("iterations", scram.DEFAULT_ITERATIONS, high=scram.MAX_ITERATIONS),
    )
    return {}


async def remove_user(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    await (await context.access.admin()).users.remove(
        request.required("name"), mechanism=request.required("mechanism")
    )
    return {}


# ACLs


async def list_acls(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    found = await (await context.access.admin()).acls.describe()
    principal, kind = request.text("principal"), request.text("resourceType")
    acls = [
        each
        for each in found
        if (not principal or each.principal == principal) and (not kind or each.resource_type.name == kind)
    ]
    chosen, page = page_of(
        request,
        acls,
        name=lambda acl: f"{acl.principal} {acl.resource_name} {acl.operation.name} {acl.host}",
        sorts={
            "resource": lambda acl: (acl.resource_type, acl.resource_name, acl.principal),
            "principal": lambda acl: (acl.principal, acl.resource_type, acl.resource_name),
            "operation": lambda acl: (acl.operation.name, acl.resource_name, acl.principal),
        },
    )
    page["items"] = [_acl(each) for each in chosen]
    return page


def _acl(acl: AclBinding) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission_type.name,
        "resourceType": acl.resource_type.name,
        "resourceName": acl.resource_name,
        "patternType": acl.pattern_type.name,
    }


async def acl_choices(_context: ApiContext, _request: ApiRequest) -> dict[str, Any]:
    return {
        "operations": [each.name for each in _OPERATIONS],
        "resourceTypes": [each.name for each in _RESOURCES],
        "patternTypes": [each.name for each in _PATTERNS],
        "permissions": [each.name for each in _PERMISSIONS],
    }


def _binding(body: JsonBody) -> AclBinding:
    return AclBinding(
        body.text("principal"),
        _chosen(body, "operation", _OPERATIONS),
        _chosen(body, "resourceType", _RESOURCES),
        body.text("resourceName"),
        _chosen(body, "patternType", _PATTERNS),
        _chosen(body, "permission", _PERMISSIONS),
        body.text("host", "*"),
    )


def _chosen(body: JsonBody, name: str, allowed: tuple[E, ...]) -> E:
    given = body.text(name, allowed[0].name if name in ("patternType", "permission") else None)
    for each in allowed:
        if each.name == given.upper():
            return each
    raise bad_request(f"{name} has to be one of {', '.join(each.name for each in allowed)}")


async def create_acl(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    await (await context.access.admin()).acls.create([_binding(request.body())])
    return {}


async def delete_acl(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    acl = _binding(request.body())
    exactly = AclBindingFilter(
        acl.principal,
        acl.operation,
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.permission_type,
        acl.host,
    )
    return {"deleted": len(await (await context.access.admin()).acls.delete([exactly]))}


# Quotas


async def list_quotas(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    quotas = await (await context.access.admin()).quotas.describe()

    def name(entity: Any) -> str:
        return " ".join(f"{kind} {each or '<default>'}" for kind, each in entity.items())

    chosen, page = page_of(
        request,
        quotas,
        name=lambda each: name(each.entity),
        sorts={"entity": lambda each: name(each.entity)},
    )
    page["items"] = [{"entity": dict(each.entity), "values": dict(each.quotas)} for each in chosen]
    return page


async def alter_quotas(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    body = request.body()
    entity = body.mapping("entity")
    if not entity or any(
        kind not in _ENTITIES or not (name is None or isinstance(name, str)) for kind, name in entity.items()
    ):
        raise bad_request(f"entity has to name {', '.join(_ENTITIES)}; null is the default one")
    values = body.mapping("set")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values.values()):
        raise bad_request("a quota is a number")
    removed = body.texts("remove")
    if not values and not removed:
        raise bad_request("nothing is to be changed: give set or remove")
    await (await context.access.admin()).quotas.alter(
        entity, set={name: float(value) for name, value in values.items()}, remove=removed
    )
    return {}


ROUTES: Final = (
    ConsoleRoute("GET", "/api/users", list_users),
    ConsoleRoute("POST", "/api/users", set_password),
    ConsoleRoute("DELETE", "/api/users", remove_user),
    ConsoleRoute("GET", "/api/acls", list_acls),
    ConsoleRoute("GET", "/api/acls/choices", acl_choices),
    ConsoleRoute("POST", "/api/acls", create_acl),
    ConsoleRoute("POST", "/api/acls/delete", delete_acl),
    ConsoleRoute("GET", "/api/quotas", list_quotas),
    ConsoleRoute("POST", "/api/quotas", alter_quotas),
)
