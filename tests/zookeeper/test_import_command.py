"""`ottla zookeeper import` in clumsy hands: twice at once, too early, too late, in the wrong place.

A real ZooKeeper with the znodes of a small cluster, and the directory of its broker.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from ottla.cli.errors import UNREACHABLE, USAGE
from ottla.log.directory.meta_properties import mark_of_zookeeper
from ottla.protocol.names import TopicPartition, parse_uuid
from ottla.runtime.disk import RealDisk
from ottla.zookeeper import znodes
from ottla.zookeeper.znodes import PartitionAssignment, TopicPartitionStateZNode, TopicZNode
from tests.support.command_line import CommandLine, Ended
from tests.support.rows import for_each
from tests.support.zookeeper import ApacheZooKeeper

pytestmark = [pytest.mark.kafka]

CLUSTER_ID = "NjX7PqHSRUmpKQSZEDlZuw"
ORDERS_ID = "1y8N55JZS7-UKFp5YmSX_w"
LOGIN = ("kafka", "secret")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheZooKeeper]:
    with ApacheZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def client(zookeeper: ApacheZooKeeper) -> Iterator[KazooClient]:
    """The znodes of a stopped cluster, below /kafka."""
    client = KazooClient(zookeeper.connect)
    client.start()
    client.add_auth("digest", ":".join(LOGIN))
    client.delete("/kafka", recursive=True)
    orders = TopicZNode("orders", {0: PartitionAssignment((1,))}, parse_uuid(ORDERS_ID))
    tree = {
        znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER_ID),
        znodes.BROKER_IDS: b"",
        znodes.CONTROLLER_EPOCH: b"3",
        znodes.topic_path("orders"): orders.encode(),
        znodes.partition_state_path(TopicPartition("orders", 0)): TopicPartitionStateZNode(
            1, 5, (1,), 3
        ).encode(),
    }
    for path, data in tree.items():
        client.create(f"/kafka{path}", data, makepath=True)
    yield client
    client.stop()
    client.close()


class Broker:
    """The files of a stopped broker, and the command for them."""

    def __init__(self, root: Path, connect: str) -> None:
        self.root = root
        self.data = root / "data"
        self.file = root / "server.properties"
        (self.data / "orders-0").mkdir(parents=True)
        (self.data / ".lock").touch()
        (self.data / "meta.properties").write_text(f"version=0\nbroker.id=1\ncluster.id={CLUSTER_ID}\n")
        (self.data / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {ORDERS_ID}\n")
        self.file.write_text(f"broker.id=1\nzookeeper.connect={connect}/kafka\nlog.dirs={self.data}\n")

    def run(self, *options: str) -> Ended:
        return CommandLine("127.0.0.1:1")("zookeeper", "import", str(self.file), "--wait", "0", *options)

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def is_refused(self, message: str, *options: str, status: int = 1) -> None:
        """The import ends with an error that has this text, and nothing was written."""
        before = self.files()
        ended = self.run(*options)
        assert ended.status == status, ended
        assert message in ended.err + ended.out, ended
        assert self.files() == before


@pytest.fixture
def broker(tmp_path: Path, zookeeper: ApacheZooKeeper, client: KazooClient) -> Broker:
    return Broker(tmp_path, zookeeper.connect)


def test_a_wrong_chroot_is_told_with_the_right_one(broker: Broker, zookeeper: ApacheZooKeeper) -> None:
    for wrong in (zookeeper.connect, f"{zookeeper.connect}/kafak"):
        broker.is_refused("there is no /cluster/id", "--zookeeper", wrong)
        broker.is_refused(f"Clusters of Kafka are at {zookeeper.connect}/kafka", "--zookeeper", wrong)


def test_no_zookeeper_is_told_at_once(broker: Broker) -> None:
    """Though Kafka's own server.properties has the time in it that a broker waits."""
    broker.file.write_text(broker.file.read_text() + "zookeeper.connection.timeout.ms=180000\n")
    began = time.monotonic()
    message = "ZooKeeper cannot be reached: 127.0.0.1:1: Connection refused"
    broker.is_refused(message, "--zookeeper", "127.0.0.1:1/kafka", status=UNREACHABLE)
    assert time.monotonic() - began < 60
    ended = broker.run("--zookeeper", "127.0.0.1:1/kafka")
    assert ended.err.startswith("reading ZooKeeper at 127.0.0.1:1/kafka\n")


def test_a_port_that_is_not_of_zookeeper_is_told(broker: Broker) -> None:
    config = broker.root / "zookeeper.properties"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = f"127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(f"zookeeper.connect={connect}/kafka\nzookeeper.connection.timeout.ms=300\n")
        message = f"{connect} did not answer within 0.3 s"
        broker.is_refused(message, "--zookeeper-config", str(config), status=UNREACHABLE)


@for_each(
    ("options", "message"),
    [
        ("--controllers nonsense", "'nonsense' is not of the form ID@HOST:PORT"),
        ("--controllers 1@h:99999", "ports go from 1 to 65535"),
        ("--controllers 1@h:9093,1@h:9094", "1 is named twice"),
        ("--controllers 1@h:9093,2@h:9093", "h:9093 is named twice"),
        ("--controllers 99999999999@h:9093", "the largest is 2147483647"),
        ("--controller-dir 100={root}/c", "--controller-dir is for a node of --controllers"),
        ("--controllers 1@h:9093 --controller-dir 100={root}/c", "100 is not among --controllers"),
        ("--controllers 1@h:9093 --controller-dir 1={root}/c", "node 1 is given twice"),
        ("--controllers 9@h:9093 --controller-dir 9={root}/data/c", "is inside the other"),
        ("--controllers 9@h:9093 --controller-dir 9={root}/link", "is given twice"),
        ("--log-dirs 2={root}/data", "is given twice"),
        ("--log-dirs nonsense", "expected ID=DIR,DIR"),
        ("--zookeeper http://zk:2181/kafka", "'http:' is not an address"),
        ("--output {root}/server.properties", "is not a directory"),
        ("--release-version 2.0", "known are 3.3"),
        ("--wait nan", "is not a finite number"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_asked(
    tmp_path: Path, options: str, message: str
) -> None:
    """The node runs, and ZooKeeper is away."""
    broker = Broker(tmp_path, "127.0.0.1:1")
    (tmp_path / "link").symlink_to(broker.data)
    lock = RealDisk().lock(str(broker.data / ".lock"))
    try:
        broker.is_refused(message, *options.format(root=tmp_path).split(), status=USAGE)
    finally:
        lock.release()


def test_without_directories_nothing_is_asked() -> None:
    ended = CommandLine("127.0.0.1:1")("zookeeper", "import", "--zookeeper", "127.0.0.1:1")
    assert ended.status == USAGE
    assert "no directory is given" in ended.err


def test_a_login_that_may_not_read_is_told(broker: Broker, client: KazooClient) -> None:
    user = f"/kafka{znodes.CONFIG_USERS}/alice"
    client.create(user, znodes.encode_config({}), acl=[make_digest_acl(*LOGIN, all=True)], makepath=True)
    broker.is_refused("without a login may not read /config/users. Give the login of the brokers")
    config = broker.root / "zookeeper.properties"
    config.write_text(
        "zookeeper.login.scheme=digest\nzookeeper.login.user=kafka\nzookeeper.login.password=x\n"
    )
    broker.is_refused("the login 'kafka' may not read", "--zookeeper-config", str(config))
    config.write_text(config.read_text().replace("password=x", "password=secret"))
    assert broker.run("--zookeeper-config", str(config), "--dry-run").status == 0


def test_a_broker_that_runs_is_refused(broker: Broker, client: KazooClient) -> None:
    client.create(f"/kafka{znodes.broker_path(7)}", b"{}", ephemeral=True)
    broker.is_refused("brokers are running: 7 (in /brokers/ids)")
    client.delete(f"/kafka{znodes.broker_path(7)}")
    lock = RealDisk().lock(str(broker.data / ".lock"))
    broker.is_refused("a broker runs there, or another import")
    lock.release()
    assert broker.run().status == 0


def test_two_imports_at_once_do_no_harm(broker: Broker) -> None:
    (broker.data / ".lock").unlink()  # so that none of them can wait for it
    command = [sys.executable, "-m", "ottla", "zookeeper", "import", str(broker.file), "--json"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    ended = [(*process.communicate(timeout=240), process.returncode) for process in running]
    assert 0 in [status for *_, status in ended], ended
    for _, err, status in ended:
        assert status == 0 or "another import" in err or "was changed just now" in err, err
    report = broker.run("--json").json
    assert report["pending"] == []
    assert not list(broker.data.glob("*-delete"))


def test_another_metadata_version_replaces_the_first_and_nothing_replaces_a_node_that_started(
    broker: Broker,
) -> None:
    assert broker.run("--release-version", "4.0").status == 0
    again = broker.run("--json").json
    assert again["metadata_version"] == "4.3-IV0"
    assert any("__cluster_metadata-0" in path for path in again["pending"])
    log = broker.data / "__cluster_metadata-0"
    assert len(list(log.iterdir())) == 1
    (log / "quorum-state").write_text("{}")
    broker.is_refused("node 1 has started since the import")
    broker.is_refused("node 1 has started since the import", "--release-version", "4.0")


def test_directories_that_are_missing_or_fail_are_told(broker: Broker) -> None:
    text = broker.file.read_text()
    broker.file.write_text(text.replace("/data", f"/data,{broker.root}/lost"))
    broker.is_refused("lost, a directory of broker 1, does not exist: is its disk mounted?")
    assert not (broker.root / "lost").exists()
    (broker.root / "lost" / ".lock").mkdir(parents=True)  # which cannot be locked
    broker.is_refused("If the disk has failed, take the directory out of log.dirs")


def test_the_directory_of_a_controller_has_to_be_its_own(broker: Broker) -> None:
    options = ("--controllers", "100@127.0.0.1:9093", "--controller-dir", f"100={broker.root}/other")
    (broker.root / "other").write_text("not a directory")
    broker.is_refused("is not a directory", *options)
    (broker.root / "other").unlink()
    (broker.root / "other" / "lost+found").mkdir(parents=True)
    (broker.root / "other" / "photos").mkdir()
    broker.is_refused("is not empty: it has photos", *options)
    (broker.root / "other" / "photos").rmdir()
    assert broker.run(*options, "--output", str(broker.root)).status == 0
    again = broker.run(*options, "--output", str(broker.root), "--json").json
    assert (again["problems"], again["pending"]) == ([], [])


def test_settings_that_could_not_be_written_are_written_by_the_next_run(broker: Broker) -> None:
    new = broker.root / "server-kraft.properties"
    obstacle = broker.root / "server-kraft.properties.tmp"
    obstacle.mkdir()
    ended = broker.run()
    assert ended.status == 1
    assert f"cannot use {obstacle}: Is a directory. To go on, solve that" in ended.err
    obstacle.rmdir()
    report = broker.run("--json").json
    assert report["pending"] == [str(new)]
    assert new.exists()


def test_another_user_is_told_that_the_broker_may_not_read_what_is_written(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.run("--dry-run", "--json").json["warnings"] == []
    monkeypatch.setattr("os.geteuid", lambda: broker.data.stat().st_uid + 1)
    (warning,) = broker.run("--dry-run", "--json").json["warnings"]
    assert "run it as that user, or give it the new files" in warning


def test_settings_of_another_import_are_not_mixed_with_this_one(broker: Broker) -> None:
    assert broker.run("--controllers", "1@127.0.0.1:9093").status == 0
    broker.is_refused(
        "server-kraft.properties was there already, with controller.quorum.voters=1@127.0.0.1:9093",
        *("--controllers", "1@kafka-1:9093"),
    )
    new = broker.root / "server-kraft.properties"
    new.write_text(new.read_text() + "num.io.threads=3\n")
    edited = new.read_text()
    ended = broker.run("--controllers", "1@127.0.0.1:9093")
    assert ended.status == 0
    assert "with other settings, and is not changed" in ended.out
    assert new.read_text() == edited


def test_the_files_of_other_nodes_are_told_apart(broker: Broker) -> None:
    given = broker.file.read_text()
    broker.file.write_text(given + "process.roles=broker\nnode.id=1\n")
    broker.is_refused("Give the file that the broker had on ZooKeeper")
    # The same, of Ottla's legacy mode, is what is wanted.
    legacy = f"cluster.id={CLUSTER_ID}\nnode.id=1\nversion=1\ndirectory.id={ORDERS_ID}\n"
    (broker.data / "meta.properties").write_text(legacy)
    mark_of_zookeeper(RealDisk(), str(broker.data))
    broker.file.write_text(
        "metadata.store=zookeeper\nprocess.roles=broker,controller\nnode.id=1\n"
        + given.partition("\n")[2]
        + "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
    )
    report = broker.run("--json").json
    assert report["controllers"] == ["1@127.0.0.1:9093"]
    assert report["problems"] == []
    assert not (broker.data / "metadata-in-zookeeper").exists()
    assert ORDERS_ID in (broker.data / "meta.properties").read_text()
