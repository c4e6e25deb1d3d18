"""Sessions with a real ZooKeeper: conditional writes, transactions, watches, logins and TLS."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla import blocking
from ottla.runtime.disk import RealDisk
from ottla.runtime.zookeeper import (
    CheckZNode,
    CreateZNode,
    DeleteZNode,
    KazooSession,
    SessionEvent,
    SetZNode,
    WatchEvent,
    WatchKind,
    ZNodeAccess,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperLogin,
    ZooKeeperSettings,
)
from ottla.security.zookeeper_login import load_tls
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_cluster import LocalCluster
from ottla.zookeeper import znodes
from tests.support.certificates import client_certificate, server_certificate, write_ca, write_pem
from tests.support.command_line import CommandLine
from tests.support.zookeeper import SASL_SETTINGS, ApacheZooKeeper, client_jaas, jaas_option, server_jaas

pytestmark = pytest.mark.kafka

WAIT_S = 60.0
PASSWORD = "a password"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("material")
    write_pem(directory, "server", server_certificate())
    write_pem(directory, "client", client_certificate())
    write_ca(directory)
    return directory


@pytest.fixture(scope="module")
def zookeeper(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheZooKeeper]:
    jaas = jaas_option(material / "server.jaas", server_jaas("kafka", PASSWORD))
    settings = {
        **SASL_SETTINGS,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(material / "server.pem"),
        "ssl.trustStore.location": str(material / "ca.pem"),
        "ssl.clientAuth": "need",
    }
    (material / "ca.pem").write_text((material / "ca.crt").read_text())
    (tls_port,) = free_ports(1)
    with ApacheZooKeeper(
        tmp_path_factory.mktemp("zookeeper"),
        settings=settings,
        jvm=(jaas,),
        tls_port=tls_port,
    ) as server:
        yield server


async def session_at(
    zookeeper: ApacheZooKeeper,
    login: ZooKeeperLogin | None = None,
    access: ZNodeAccess = ZNodeAccess.OPEN,
) -> KazooSession:
    settings = ZooKeeperSettings(zookeeper.connect, login=login, access=lambda _: access)
    return await KazooSession.connect(settings)


async def error_of(awaitable) -> ZooKeeperErrorCode:
    with pytest.raises(ZooKeeperError) as error:
        await awaitable
    return error.value.code


async def test_writes_are_conditional_on_the_version(zookeeper: ApacheZooKeeper) -> None:
    session = await session_at(zookeeper)
    path = f"/{uuid4().hex}"
    assert await session.create(path, b"first") == path
    assert await error_of(session.create(path)) is ZooKeeperErrorCode.NODE_EXISTS
    assert (await session.get(path)).data == b"first"
    assert (await session.set(path, b"second", 0)).version == 1
    assert await error_of(session.set(path, b"third", 0)) is ZooKeeperErrorCode.BAD_VERSION
    assert await error_of(session.delete(path, 0)) is ZooKeeperErrorCode.BAD_VERSION
    await session.create(f"{path}/child")
    assert await session.children(path) == ["child"]
    assert await error_of(session.delete(path)) is ZooKeeperErrorCode.NOT_EMPTY
    await session.delete(f"{path}/child")
    await session.delete(path, 1)
    assert await session.exists(path) is None
    assert await error_of(session.get(path)) is ZooKeeperErrorCode.NO_NODE
    await session.close()


async def test_a_transaction_does_all_or_nothing_and_names_what_failed(zookeeper: ApacheZooKeeper) -> None:
    session = await session_at(zookeeper)
    path = f"/{uuid4().hex}"
    await session.create(path, b"1")
    done = await session.multi(
        [
            CheckZNode(path, 0),
            CreateZNode(f"{path}/a", b"x"),
            SetZNode(path, b"2", 0),
            DeleteZNode(f"{path}/a"),
        ]
    )
    assert done[1] == f"{path}/a"
    assert done[2] is not None
    assert done[2].version == 1
    with pytest.raises(ZooKeeperError) as error:
        await session.multi([CreateZNode(f"{path}/b"), CheckZNode(path, 0), SetZNode(path, b"3")])
    assert (error.value.code, error.value.index) == (ZooKeeperErrorCode.BAD_VERSION, 1)
    assert await session.children(path) == []
    await session.close()


async def test_watches_fire_once_and_ephemeral_znodes_end_with_their_session(
    zookeeper: ApacheZooKeeper,
) -> None:
    watcher, owner = await session_at(zookeeper), await session_at(zookeeper)
    path = f"/{uuid4().hex}"
    events: asyncio.Queue[WatchEvent] = asyncio.Queue()
    assert await watcher.exists(path, events.put_nowait) is None
    await owner.create(path, b"", ephemeral=True)
    assert await asyncio.wait_for(events.get(), WAIT_S) == WatchEvent(WatchKind.CREATED, path)
    node = await watcher.get(path, events.put_nowait)
    assert node.stat.ephemeral_owner == owner.session_id
    await owner.close()
    assert await asyncio.wait_for(events.get(), WAIT_S) == WatchEvent(WatchKind.DELETED, path)
    assert events.empty()
    await watcher.create(path)
    await watcher.children(path, events.put_nowait)
    names = [await watcher.create(f"{path}/n_", sequential=True) for _ in range(2)]
    assert names == [f"{path}/n_0000000000", f"{path}/n_0000000001"]
    assert await asyncio.wait_for(events.get(), WAIT_S) == WatchEvent(WatchKind.CHILDREN, path)
    await watcher.close()


async def test_digest_logins_read_what_others_may_not(zookeeper: ApacheZooKeeper) -> None:
    for scheme, user in (("digest", "digest-user"), ("sasl-digest", "kafka")):
        login = ZooKeeperLogin(scheme, user, PASSWORD)
        owner = await session_at(zookeeper, login, ZNodeAccess.SENSITIVE)
        other = await session_at(zookeeper)
        path = f"/{uuid4().hex}"
        await owner.create(path, b"secret")
        assert (await owner.get(path)).data == b"secret"
        assert await error_of(other.get(path)) is ZooKeeperErrorCode.NO_AUTH
        await owner.close()
        owner = await session_at(zookeeper, login, ZNodeAccess.SECURE)
        open_path = f"/{uuid4().hex}"
        await owner.multi([CreateZNode(open_path, b"open")])
        assert (await other.get(open_path)).data == b"open"
        assert await error_of(other.set(open_path, b"")) is ZooKeeperErrorCode.NO_AUTH
        await owner.close()
        await other.close()


async def test_a_wrong_password_is_said(zookeeper: ApacheZooKeeper) -> None:
    with pytest.raises(
        ConnectionError, match=r"refused the login of kafka\. Check the user and the password"
    ):
        await session_at(zookeeper, ZooKeeperLogin("sasl-digest", "kafka", "wrong"))


async def reason_of_no_session(reason: str, connect: str, **settings: Any) -> str:
    """Fail to connect, within more time if no server was tried in less, and return what is said of it."""
    for seconds in (3, 60):
        within = ZooKeeperSettings(connect, connection_timeout_ms=seconds * 1000, **settings)
        with pytest.raises(ConnectionError, match=f"did not answer within {seconds} s") as error:
            await KazooSession.connect(within)
        if reason in str(error.value):
            break
    return str(error.value)


async def test_a_certificate_that_is_not_trusted_is_said(zookeeper: ApacheZooKeeper) -> None:
    tls = load_tls({"zookeeper.ssl.client.enable": "true"}, RealDisk())
    said = await reason_of_no_session("certificate", zookeeper.tls_connect, tls_context=tls)
    assert re.search(r" s \(.*certificate.*\)\. Check.*its TLS settings", said)


async def test_an_address_without_a_server_is_said() -> None:
    said = await reason_of_no_session("refused", "127.0.0.1:1")
    assert " s (Connection refused). Check" in said


async def test_a_machine_that_answers_nothing_leaves_time_for_the_others(
    zookeeper: ApacheZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.shuffle", lambda hosts: None)  # in the order in which they are given
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # its queue is full: nothing answers the next one
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        # Of ten servers, so that the silent one may take a tenth of the time.
        hosts = [f"127.0.0.1:{silent.getsockname()[1]}", *[zookeeper.connect] * 9]
        session = await KazooSession.connect(
            ZooKeeperSettings(",".join(hosts), session_timeout_ms=40_000, connection_timeout_ms=39_500)
        )
        await session.close()


async def test_a_lost_server_is_an_event(zookeeper: ApacheZooKeeper) -> None:
    session = await session_at(zookeeper)
    events: list[SessionEvent] = []
    session.add_listener(events.append)
    await session.close()
    await session.close()
    assert events == [], "a session that was closed on purpose tells nothing"


def test_an_import_logs_in_and_uses_the_stores_of_the_broker(
    zookeeper: ApacheZooKeeper, material: Path, tmp_path: Path
) -> None:
    """By TLS with a client's certificate, and as the user of the brokers' JAAS file."""
    chroot = f"/{uuid4().hex}"

    async def prepare() -> str:
        login = ZooKeeperLogin("sasl-digest", "kafka", PASSWORD)
        session = await session_at(zookeeper, login)
        for path in ("", "/cluster", "/config", "/config/users"):
            await session.create(chroot + path)
        await session.create(f"{chroot}/cluster/id", znodes.encode_cluster_id("NjX7PqHSRUmpKQSZEDlZuw"))
        secret = znodes.encode_config({"producer_byte_rate": "5"})
        await session.close()
        session = await session_at(zookeeper, login, ZNodeAccess.SENSITIVE)
        await session.create(f"{chroot}/config/users/alice", secret)
        await session.close()
        return chroot

    asyncio.run(prepare())
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\n")
    file = tmp_path / "server.properties"
    file.write_text(
        f"broker.id=1\nlog.dirs={data}\nzookeeper.connect={zookeeper.tls_connect}{chroot}\n"
        "zookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.keystore.location={material / 'client.pem'}\n"
        f"zookeeper.ssl.truststore.location={material / 'ca.pem'}\n"
    )
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        "KafkaServer { x.Y required; };\n"
        "Client {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  username="kafka" password="{PASSWORD}";\n}};\n'
    )
    ottla = CommandLine("127.0.0.1:1")
    report = ottla.ok("zookeeper", "import", str(file), "--jaas", str(jaas), "--dry-run", "--json").json
    assert report["counts"]["quotas"] == 1
    refused = ottla("zookeeper", "import", str(file), "--dry-run")
    assert refused.status == 1
    assert "/config/users/alice. Give the login of the brokers, with --jaas FILE" in refused.err


def start(directory: Path, connect: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Start a node that is to be refused."""
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "cluster.id": "NjX7PqHSRUmpKQSZEDlZuw",
        "metadata.store": "zookeeper",
        "zookeeper.connect": connect,
        "zookeeper.connection.timeout.ms": "60000",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, "-m", "ottla", "start", "--data-dir", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=4 * WAIT_S,
        check=False,
    )


@pytest.mark.slow
def test_a_node_logs_in_by_tls_and_its_znodes_are_its_own(
    zookeeper: ApacheZooKeeper, material: Path, tmp_path: Path
) -> None:
    """With a certificate, and as the user of a JAAS file; others only read, and no secrets."""
    jaas = tmp_path / "jaas.conf"
    jaas.write_text("KafkaServer { x.Y required; };\n" + client_jaas("kafka", PASSWORD))
    chroot = f"/{uuid4().hex}"
    settings = {
        "zookeeper.set.acl": "true",
        "zookeeper.jaas.file": str(jaas),
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(material / "client.pem"),
        "zookeeper.ssl.truststore.location": str(material / "ca.pem"),
    }
    with LocalCluster(nodes=1, settings=settings, zookeeper=zookeeper.tls_connect + chroot) as cluster:
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create("orders", partitions=1, replication_factor=1)
        shell = KazooClient(zookeeper.connect + chroot)
        shell.start()
        try:
            assert b"adding_replicas" in shell.get("/brokers/topics/orders")[0]
            for path in ("/brokers/topics/orders", "/controller", "/controller_epoch", "/ottla/metadata_id"):
                with pytest.raises(NoAuthError):
                    shell.set(path, b"")
            with pytest.raises(NoAuthError):
                shell.get_children("/config/users")
            owners = {acl.id.id for acl in shell.get_acls("/brokers/topics/orders")[0]}
            assert len(owners) == 3, f"the user, the certificate and everyone: {owners}"
        finally:
            shell.stop()
            shell.close()
        stranger = start(tmp_path / "a", zookeeper.connect + chroot, cluster_id=cluster.cluster_id)
        assert stranger.returncode == 1
        assert "ZooKeeper does not let a node without a login write /" in stranger.stderr
        assert "Traceback" not in stranger.stderr
    login = {"zookeeper_login_scheme": "sasl-digest", "zookeeper_login_user": "kafka"}
    refused = start(tmp_path / "b", zookeeper.connect, **login, zookeeper_login_password="wrong")
    assert refused.returncode == 1
    assert "refused the login of kafka. Check the user and the password" in refused.stderr
    assert "wrong" not in refused.stderr
