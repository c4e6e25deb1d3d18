"""Quotas of users that have logged in: they hold whatever client id a client gives itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ottla import blocking
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.testing.local_node import LocalNode
from tests.kafka.scripts.kit import batch_of, produce_request
from tests.support.principals import ADMIN, client_of, login_settings, own_settings
from tests.support.wire import WireClient

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = ("admin", "alice", "bob")
# Ten minutes of them, so that no pause of the machine takes what was sent out of the windows.
LONG_WINDOWS = {"quota.window.size.seconds": "60"}


def password(user: str) -> str:
    return f"{user}-secret"


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    users = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        **LONG_WINDOWS,
    }
    with LocalNode(settings) as node:
        yield node


def admin_of(node: LocalNode) -> blocking.Admin:
    return blocking.Admin(login_settings(node.bootstrap_servers, "admin", password("admin")))


def logged_in(stack: ExitStack, node: LocalNode, user: str, client_id: str) -> WireClient:
    client = stack.enter_context(WireClient(node.bootstrap_servers, client_id=client_id))
    client.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    token = f"\0{user}\0{password(user)}".encode()
    answer = client.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
    assert answer.error_code == 0
    return client


def test_a_user_is_throttled_by_any_client_id_and_another_user_is_not(node: LocalNode) -> None:
    name = f"t-{uuid.uuid4().hex}"
    with ExitStack() as stack, admin_of(node) as admin:
        admin.topics.create(name, partitions=1)
        topic_id = admin.topics.describe(name).topic_id
        admin.quotas.alter({"user": "alice"}, set={"producer_byte_rate": 10})
        admin.quotas.alter({"user": "alice", "client-id": "trusted"}, set={"producer_byte_rate": 10**9})

        def throttle_ms(user: str, client_id: str, size: int = 100_000) -> int:
            request = produce_request("", batch_of(bytes(size)), topic_id=topic_id)
            client = logged_in(stack, node, user, client_id)
            return client.get(request, 13, ProduceResponse).throttle_time_ms

        # 100,000 bytes at 10 a second, less the ten or eleven minutes in which they are counted.
        assert 9_330_000 < throttle_ms("alice", "one") < 9_420_000
        # What the user took counts for each of its clients, whatever they are called.
        assert 19_330_000 < throttle_ms("alice", "two") < 19_430_000
        assert throttle_ms("alice", "") > 19_330_000
        assert throttle_ms("bob", "one") == 0
        assert throttle_ms("alice", "trusted") == 0
        # A quota of the default user is one for each user without its own.
        admin.quotas.alter({"user": None}, set={"producer_byte_rate": 350})
        assert throttle_ms("bob", "one") == 0
        assert throttle_ms("bob", "two", 150_000) > 0
        assert throttle_ms("admin", "one") == 0
        # Before a client has logged in it has no user, and no quota of one.
        admin.quotas.alter({"user": "alice"}, set={"request_percentage": 0.000001})
        busy = logged_in(stack, node, "alice", "busy")
        assert 0 < busy.get(MetadataRequest(topics=None), 12, MetadataResponse).throttle_time_ms <= 60_000


@pytest.mark.slow
def test_a_user_who_sends_what_only_nodes_may_send_is_throttled() -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=1, producer_epoch=0, verify_only=True, topics=[]
    )
    add = AddPartitionsToTxnRequest(transactions=[transaction])
    settings = {**own_settings(["mallory"]), **LONG_WINDOWS}
    with LocalNode(settings) as node, ExitStack() as stack:
        admin = stack.enter_context(client_of(node.bootstrap_servers, ADMIN))
        quota = AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="user", entity_name=None)],
            ops=[OpData(key="request_percentage", value=0.000001)],
        )
        altered = admin.get(AlterClientQuotasRequest(entries=[quota]), 1, AlterClientQuotasResponse)
        assert altered.entries[0].error_code == 0
        # Each by a connection of its own, as one that is throttled is not read from for a while.
        mallory = [stack.enter_context(client_of(node.bootstrap_servers, "mallory")) for _ in range(3)]
        denied = [each.get(add, 4, AddPartitionsToTxnResponse) for each in mallory]
        assert {each.error_code for each in denied} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert sum(each.throttle_time_ms > 0 for each in denied) >= 2
        # From those who may send it, it is exempt.
        nodes = stack.enter_context(client_of(node.bootstrap_servers, ADMIN))
        for _ in range(3):
            allowed = nodes.get(add, 4, AddPartitionsToTxnResponse)
            assert (allowed.error_code, allowed.throttle_time_ms) == (0, 0)
