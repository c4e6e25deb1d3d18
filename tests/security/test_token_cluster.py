"""Three nodes that log in at each other with tokens of OAuth, and delegation tokens that all of them know."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.producer.producer import Producer
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import FOR_TESTS
from tests.security.test_sasl_cluster import format_node
from tests.support.tokens import AUDIENCE, Issuer, claims

pytestmark = pytest.mark.slow

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
DEADLINE_SECONDS = 90


def node_settings(node_id: int, directory: Path, ports: list[int], keys: Path, token: Path) -> dict[str, str]:
    return {
        **FOR_TESTS,
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{ports[n + 2]}" for n in (1, 2, 3)),
        "listeners": f"CLIENTS://127.0.0.1:{ports[node_id - 1]},CONTROLLER://127.0.0.1:{ports[node_id + 2]}",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f"{MODULE} required;",
        "scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:nodes;User:alice",
        "delegation.token.secret.key": "the-secret-of-all-nodes",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "log.dirs": str(directory),
    }


@pytest.mark.exhaustive
def test_tokens_of_nodes_and_users(tmp_path: Path) -> None:
    issuer = Issuer("ES256")
    keys, token = tmp_path / "keys.json", tmp_path / "token"
    keys.write_bytes(issuer.jwks())
    renewed = 0

    async def renew() -> None:
        """What another program does: the nodes' token is valid for seconds only."""
        nonlocal renewed
        while True:
            fresh = tmp_path / "token.new"
            fresh.write_text(issuer.token(claims(sub="nodes", exp=int(time.time()) + 5)))
            fresh.rename(token)
            renewed += 1
            await asyncio.sleep(0.5)

    async def run() -> None:
        ports, runtime = free_ports(6), Runtime.real(guest=True)
        renewing = asyncio.ensure_future(renew())
        nodes = []
        for node_id in (1, 2, 3):
            directory = tmp_path / str(node_id)
            format_node(runtime, directory, node_id)
            settings = node_settings(node_id, directory, ports, keys, token)
            nodes.append(Node(runtime, NodeConfig(settings)))
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            given: dict[str, Any] = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: issuer.token(),
            }
            for port in ports[:3]:
                # Whichever node is asked, the controller decides for the client.
                async with Admin({**given, "bootstrap.servers": f"127.0.0.1:{port}"}) as admin:
                    created = await admin.tokens.create(renewers=["User:bob"])
                    assert (created.owner, created.requester) == ("User:alice", "User:alice")
                    assert await admin.tokens.renew(created.hmac) >= created.expires_at_ms
            for port in ports[:3]:
                async with Admin({**given, "bootstrap.servers": f"127.0.0.1:{port}"}) as admin:
                    known: set[str] = set()
                    while created.token_id not in known:  # the node may not have read of it yet
                        known = {each.token_id for each in await admin.tokens.describe()}
            login = f'username="{created.token_id}" password="{created.password}" tokenauth="true"'
            bearer = {
                "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports[:3]),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{SCRAM} required {login};",
            }
            async with Producer(bearer) as producer:
                await producer.send("by-token", b"first")
                await producer.flush()
                # Sessions between the nodes have ended and gone on meanwhile.
                before = renewed
                while renewed < before + 14:
                    await producer.send("by-token", b"next")
                    await producer.flush()
                    await asyncio.sleep(0.05)
        finally:
            renewing.cancel()
            await asyncio.gather(*(node.stop() for node in reversed(nodes)))
            runtime.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))
