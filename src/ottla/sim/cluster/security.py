"""Logins, ACLs and quotas in a simulated cluster: who the clients are, who changes what they may do, and what
is checked.

All listeners of a secured cluster ask for a login. Nodes and ordinary clients are super users; `GUARDED_USER`
logs in with SCRAM and may do what ACLs allow, which `SecurityChanger` changes while faults happen, and with
them quotas and the user's password. `GuardedWriter` writes as that user and compares each answer with the
ACLs that all brokers had applied, before the record was sent and still when the answer came: a deny that a
broker has applied is obeyed, and an allow is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ottla.client.admin import Admin
from ottla.client.admin.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.client.errors import AuthenticationFailed
from ottla.client.producer import Producer
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.random import Random
from ottla.runtime.runtime import Runtime
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.security.sasl.add_scram import scram_records
from ottla.sim.cluster.admins import Administrator
from ottla.sim.cluster.environment import EVENTS, ClusterEnvironment, attempt
from ottla.sim.cluster.journal import OperationState, SentRecord
from ottla.sim.cluster.writers import producer_settings

GUARDED_USER = "bob"
_PRINCIPAL = f"User:{GUARDED_USER}"
_PASSWORDS = ("first", "second")
_MECHANISM = "SCRAM-SHA-256"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_LISTENER = "SASL_PLAINTEXT"


def server_settings(controller_listener: str) -> dict[str, str]:
    """The settings of each node of a secured cluster."""
    plain = f'{_PLAIN} username="node" password="node" user_node="node" user_client="client";'
    controllers, clients = controller_listener.lower(), _LISTENER.lower()
    return {
        "listener.security.protocol.map": f"{controller_listener}:{_LISTENER},{_LISTENER}:{_LISTENER}",
        "inter.broker.listener.name": _LISTENER,
        "sasl.enabled.mechanisms": f"PLAIN,{_MECHANISM}",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        f"listener.name.{clients}.plain.sasl.jaas.config": plain,
        f"listener.name.{clients}.{_MECHANISM.lower()}.sasl.jaas.config": f"{_SCRAM};",
        f"listener.name.{controllers}.sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{controllers}.plain.sasl.jaas.config": plain,
        "authorizer.class.name": CLASS_NAME,
        "super.users": "User:node;User:client",
    }


def first_users(random: Random) -> list[MetadataRecord]:
    """The users that a secured cluster is formatted with."""
    return scram_records([f"{_MECHANISM}=[name={GUARDED_USER},password={_PASSWORDS[0]}]"], random)


def login_settings(servers: str, *, user: str = "client", password: str = "client") -> dict[str, str]:
    """How clients of a secured cluster log in; without a user, as a super user."""
    return {
        "bootstrap.servers": servers,
        "security.protocol": _LISTENER,
        "sasl.mechanism": "PLAIN" if user == "client" else _MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
    }


class _ObservedMember(Protocol):
    """A node whose image can be seen; None while it is not ready."""

    id: int

    @property
    def boot(self) -> int: ...

    @property
    def ready_image(self) -> MetadataImage | None: ...


@dataclass(frozen=True, slots=True)
class AccessState:
    """What all nodes have applied: the ids of the ACLs of the guarded user, and the boots of the nodes.

    Ids are never used twice. So a node that has the same ids and the same boot later has had them all the
    time.
    """

    acls: tuple[bytes, ...]
    boots: tuple[int, ...]
    allowed: tuple[AclOperation, ...]


@dataclass(slots=True)
class AccessView:
    """The ACLs of the guarded user as the nodes have applied them."""

    members: Sequence[_ObservedMember] = field(default_factory=list)

    def state(self) -> AccessState | None:
        """What all nodes have applied; None if one is not ready, or they differ."""
        images = [image for member in self.members if (image := member.ready_image) is not None]
        if len(images) < len(self.members):
            return None
        acls = _ids(images[0])
        if any(_ids(image) != acls for image in images):
            return None
        return AccessState(acls, tuple(member.boot for member in self.members), _allowed(images[0]))


def _ids(image: MetadataImage) -> tuple[bytes, ...]:
    return tuple(sorted(id for id, acl in image.acls.items() if acl.principal == _PRINCIPAL))


def _allowed(image: MetadataImage) -> tuple[AclOperation, ...]:
    """Decide what the user may do with the topic by the plain rule: some ACL allows it, and none denies it.
    A user that may write may describe, too.
    """
    acls = [
        acl
        for acl in image.acls.values()
        if acl.principal == _PRINCIPAL
        and acl.resource_type == AclResourceType.TOPIC
        and _matches(acl.resource_name, acl.pattern_type)
    ]
    allowed = {acl.operation for acl in acls if acl.permission_type == AclPermissionType.ALLOW}
    denied = {acl.operation for acl in acls if acl.permission_type == AclPermissionType.DENY}
    if AclOperation.WRITE in allowed:
        allowed.add(AclOperation.DESCRIBE)
    return tuple(
        each for each in (AclOperation.DESCRIBE, AclOperation.WRITE) if each in allowed and each not in denied
    )


def _matches(name: str, pattern: int) -> bool:
    return EVENTS.startswith(name) if pattern == PatternType.PREFIXED else name in (EVENTS, "*")


class SecurityChanger(Administrator):
    """Creates and deletes ACLs of the guarded user, and changes its password and its quotas."""

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        await admin.acls.create([_describable()])
        for _ in range(runtime.random.randrange(2, 8)):
            await self._change(admin, runtime.random)
            await asyncio.sleep(runtime.random.random())

    async def _change(self, admin: Admin, random: Random) -> None:
        chance = random.random()
        if chance < 0.1:
            password = _PASSWORDS[random.randrange(0, len(_PASSWORDS))]
            await admin.users.set_password(GUARDED_USER, password, mechanism=_MECHANISM)
            self.count("change a password")
        elif chance < 0.25:
            rate = float(random.randrange(1_000, 1_000_000))
            quota = {"producer_byte_rate": rate}
            await admin.quotas.alter({"user": GUARDED_USER}, set=quota)
            self.count("change a quota")
        elif chance < 0.7:
            await admin.acls.create([self._acl(random)])
            self.count("create an ACL")
        else:
            acl = self._acl(random)
            chosen = AclBindingFilter(
                principal=_PRINCIPAL, operation=acl.operation, permission_type=acl.permission_type
            )
            await admin.acls.delete([chosen])
            self.count("delete ACLs")

    def _acl(self, random: Random) -> AclBinding:
        permission = AclPermissionType.ALLOW if random.random() < 0.6 else AclPermissionType.DENY
        name, pattern = ((EVENTS, PatternType.LITERAL), (EVENTS[:3], PatternType.PREFIXED))[
            random.randrange(0, 2)
        ]
        return AclBinding(
            _PRINCIPAL, AclOperation.WRITE, AclResourceType.TOPIC, name, pattern, permission_type=permission
        )


def _describable() -> AclBinding:
    """The user may always describe the topic: it is the leader that decides what is written."""
    return AclBinding(_PRINCIPAL, AclOperation.DESCRIBE, AclResourceType.TOPIC, EVENTS)


class GuardedWriter:
    """Writes records one by one as the guarded user, and checks each answer."""

    def __init__(self, environment: ClusterEnvironment, name: str, servers: str, view: AccessView) -> None:
        self._environment = environment
        self.name = name
        self._servers = servers
        self._view = view
        self._sessions = 0
        self._password = 0

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not environment.stopping:
            self._sessions += 1
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        session = f"{self.name}.{self._sessions}"
        settings: Mapping[str, str] = login_settings(
            self._servers, user=GUARDED_USER, password=_PASSWORDS[self._password]
        )
        try:
            async with Producer(
                settings, runtime=runtime, enable_idempotence=False, **producer_settings(runtime)
            ) as producer:
                for number in range(runtime.random.randrange(5, 40)):
                    if self._environment.stopping:
                        return
                    await self._write(producer, session, number, runtime)
                    await asyncio.sleep(runtime.random.random() * 0.1)
        except AuthenticationFailed:
            self._environment.world.coverage["access: another password"] += 1
            self._password = (self._password + 1) % len(_PASSWORDS)

    async def _write(self, producer: Producer, session: str, number: int, runtime: Runtime) -> None:
        before = self._view.state()
        try:
            count = len(await producer.partitions_for(EVENTS))
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._check(before, AclOperation.DESCRIBE, was_allowed=False)
            raise
        partition = runtime.random.randrange(0, max(count, 1))
        sent = SentRecord(EVENTS, partition, f"{session}.{number}".encode(), -1, False, session, number)
        before = self._view.state()
        self._environment.on_sent(sent)
        try:
            metadata = await producer.send(EVENTS, sent.value, partition=partition)
        except KafkaError as error:
            sent.state = OperationState.FAILED
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            self._check(before, AclOperation.WRITE, was_allowed=False)
        else:
            self._environment.on_delivered(sent, metadata.offset)
            self._check(before, AclOperation.WRITE, was_allowed=True)

    def _check(self, before: AccessState | None, operation: AclOperation, *, was_allowed: bool) -> None:
        world, after = self._environment.world, self._view.state()
        if before is None or before != after:
            world.coverage["access: not decidable"] += 1
        elif (operation in before.allowed) == was_allowed:
            world.coverage[f"access: {'allowed' if was_allowed else 'denied'} as it should be"] += 1
        else:
            world.report_violation(
                f"{_PRINCIPAL} was {'allowed' if was_allowed else 'denied'} {operation.name} of {EVENTS}, "
                f"and all nodes have applied ACLs that {'deny' if was_allowed else 'allow'} it"
            )
