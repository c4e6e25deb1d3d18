"""`ottla storage format` for the nodes of a cluster: static quorums, and dynamic ones."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.log.directory.meta_properties import read_meta_properties
from ottla.protocol.names import parse_uuid
from ottla.raft.snapshot import decode_snapshot
from ottla.raft.voters import VoterSet
from ottla.runtime.address import Address
from ottla.runtime.disk import RealDisk
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine

SNAPSHOT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
DIRECTORY_ID = "dGhlLWRpcmVjdG9yeS1pZA"
# One message of magic 1: offset 0, key "k", value "v0".
OLD_MESSAGE = base64.b64decode("AAAAAAAAAAAAAAAZ9nShxQEAAAABoemqnRoAAAABawAAAAJ2MA==")


def server_properties(tmp_path: Path, *more: str, roles: str = "controller") -> Path:
    file = tmp_path / "server.properties"
    lines = [
        f"process.roles={roles}",
        "node.id=4",
        "listeners=CONTROLLER://127.0.0.1:19093",
        "controller.listener.names=CONTROLLER",
        f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}",
        f"metadata.log.dir={tmp_path / 'm'}",
        *more,
    ]
    file.write_text("\n".join(lines))
    return file


def first_voters(directory: Path) -> VoterSet | None:
    file = directory / SNAPSHOT
    return decode_snapshot(file.read_bytes()).voters if file.exists() else None


def directory_id(directory: Path) -> bytes | None:
    properties = read_meta_properties(RealDisk(), str(directory))
    assert properties is not None
    assert properties.node_id == 4
    return properties.directory_id


def test_a_controller_alone_begins_a_dynamic_quorum(tmp_path: Path, offline: CommandLine) -> None:
    file = server_properties(tmp_path, "controller.quorum.bootstrap.servers=127.0.0.1:19093")
    offline.ok("storage", "format", "-c", str(file), "--standalone")
    voters = first_voters(tmp_path / "m")
    assert voters is not None
    (voter,) = voters.voters.values()
    assert voter.key == (4, directory_id(tmp_path / "m"))
    assert voter.endpoints == {"CONTROLLER": Address("127.0.0.1", 19093)}
    for other in ("a", "b"):
        assert directory_id(tmp_path / other) is not None
        assert first_voters(tmp_path / other) is None


def test_the_first_controllers_can_be_named_with_their_directories(
    tmp_path: Path, offline: CommandLine
) -> None:
    named = f"4@host-a:9093:{DIRECTORY_ID},5@[::1]:9094:AAAAAAAAAAAAAAAAAAAAZA"
    offline.ok("storage", "format", str(tmp_path / "x"), "--node-id", "4", "--initial-controllers", named)
    voters = first_voters(tmp_path / "x")
    assert voters is not None
    assert voters.ids == (4, 5)
    assert voters.voters[5].endpoints == {"CONTROLLER": Address("::1", 9094)}
    assert directory_id(tmp_path / "x") == parse_uuid(DIRECTORY_ID)


def test_who_joins_a_quorum_that_is_there_knows_no_voters(tmp_path: Path, offline: CommandLine) -> None:
    file = server_properties(tmp_path, "controller.quorum.bootstrap.servers=127.0.0.1:19093")
    offline.ok("storage", "format", "-c", str(file), "--no-initial-controllers")
    assert first_voters(tmp_path / "m") is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--standalone", "--no-initial-controllers"], "exclude each other"),
        (["--standalone"], "needs --config"),
        (["--initial-controllers", "4@host:9093"], "id@host:port:directory-id"),
        (["--initial-controllers", f"4@host:9093:{DIRECTORY_ID[:-2]}"], "4@host:9093"),
        (["--initial-controllers", f"5@host:9093:{DIRECTORY_ID}", "--node-id", "4"], "node 4 is not among"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, offline: CommandLine, options: list[str], problem: str
) -> None:
    ended = offline("storage", "format", str(tmp_path / "x"), *options)
    assert ended.status == 2
    assert problem in ended.err
    assert not (tmp_path / "x").exists()


def test_static_voters_exclude_dynamic_ones(tmp_path: Path, offline: CommandLine) -> None:
    file = server_properties(tmp_path, "controller.quorum.voters=4@127.0.0.1:19093")
    ended = offline("storage", "format", "-c", str(file), "--standalone")
    assert ended.status == 2
    assert "controller.quorum.voters" in ended.err


def test_a_controller_of_a_dynamic_quorum_says_how_it_comes_into_it(
    tmp_path: Path, offline: CommandLine
) -> None:
    file = server_properties(tmp_path, "controller.quorum.bootstrap.servers=127.0.0.1:19093")
    ended = offline("storage", "format", "-c", str(file))
    assert ended.status == 2
    assert "--no-initial-controllers" in ended.err
    assert not (tmp_path / "m").exists()


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path, offline: CommandLine) -> None:
    file = str(tmp_path / "no.properties")
    ended = offline("storage", "format", "-c", file)
    assert (ended.status, ended.err) == (2, f"ottla: cannot read {file}: No such file or directory\n")


def test_first_users_log_in_and_commands_take_their_settings_from_a_file(
    tmp_path: Path, offline: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    first_user = ("--add-scram", "SCRAM-SHA-512=[name=admin,password=admin-secret]")
    offline.ok("storage", "format", str(tmp_path / "data"), *first_user)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "scram-sha-512.sasl.jaas.config": f"{module} required;",
    }
    # A node that is started before it is formatted says that no client can get in, and what to do.
    with LocalNode(settings, data_dir=str(tmp_path / "early")):
        assert "no client can log in: SASL_PLAINTEXT://127.0.0.1:" in caplog.text
        assert "`ottla storage format -c FILE --add-scram 'SCRAM-SHA-512=[name=NAME,password=" in caplog.text
    late = offline("storage", "format", str(tmp_path / "early"), *first_user)
    assert "is already formatted; --add-scram is for the first start" in late.err
    assert "remove it and format it again" in late.err
    caplog.clear()
    file = tmp_path / "client.properties"
    with LocalNode(settings, data_dir=str(tmp_path / "data")) as node:
        assert "no client can log in" not in caplog.text
        ottla = CommandLine(node.bootstrap_servers)
        for password, status in (("admin-secret", 0), ("wrong", 1)):
            jaas = f'{module} required username="admin" password="{password}";'
            file.write_text(
                f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}\n"
            )
            ended = ottla("users", "list", "--json", "--command-config", str(file))
            assert ended.status == status, ended.err
            assert password not in ended.err
            if status:
                assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in ended.err
            else:
                assert ended.json == [{"user": "admin", "mechanisms": {"SCRAM-SHA-512": 4096}}]
    refused = offline("storage", "format", str(tmp_path / "b"), "-S", "SCRAM-SHA-1=[name=a,password=pw]")
    assert "SCRAM-SHA-1 is not supported" in refused.err


def test_the_directory_of_a_broker_on_zookeeper_is_not_formatted(
    offline: CommandLine, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\n")
    for options in ((), ("--ignore-formatted",)):
        refused = offline("storage", "format", str(tmp_path / "new"), str(old), *options)
        assert refused.status == 1
        assert "has version=0: the directory is of broker 1 of a Kafka that ran on ZooKeeper" in refused.err
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_node_does_not_start_with_the_file_of_a_broker_on_zookeeper(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=1\nzookeeper.connect=zk1:2181\nlog.dirs={tmp_path / 'data'}\n")
    command = [sys.executable, "-m", "ottla", "start", str(file)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1
    assert "zookeeper.connect is set" in refused.stderr
    assert "`ottla zookeeper import`" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_directories_that_another_command_works_on_are_not_formatted_or_upgraded(
    offline: CommandLine, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    disk = RealDisk()
    second.mkdir()
    lock = disk.lock(str(second / ".lock"))
    refused = offline("storage", "format", str(first), str(second))
    assert refused.status == 1
    assert f"{second} is in use: stop its node, or wait until the other `ottla storage`" in refused.err
    assert not (first / "meta.properties").exists()
    lock.release()
    offline.ok("storage", "format", str(first), str(second))
    segment = first / "orders-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.write_bytes(OLD_MESSAGE)
    lock = disk.lock(str(second / ".lock"))
    refused = offline("storage", "upgrade-format", str(first), str(second), "--apply")
    assert refused.status == 1
    assert "Nothing was changed" in refused.err
    assert segment.read_bytes() == OLD_MESSAGE
    # What is formatted already needs no lock: scripts do so before each start.
    offline.ok("storage", "format", str(first), str(second), "--ignore-formatted")
    lock.release()
    offline.ok("storage", "upgrade-format", str(first), str(second), str(first), "--apply")
    assert segment.read_bytes() != OLD_MESSAGE


@pytest.mark.slow
def test_of_several_formats_at_once_one_decides(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    orders = (paths, paths[::-1], paths)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ottla", "storage", "format", *order, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in orders
    ]
    ended = [(*process.communicate(timeout=240), process.returncode) for process in running]
    (chosen,) = [json.loads(out)["cluster_id"] for out, _, status in ended if status == 0]
    for _, err, status in ended:
        assert status == 0 or any(
            text in err for text in ("is in use", "already formatted", "by another process just now")
        ), err
    for path in paths:
        assert f"cluster.id={chosen}\n" in (Path(path) / "meta.properties").read_text()


def test_a_format_that_was_killed_is_completed_by_the_next(offline: CommandLine, tmp_path: Path) -> None:
    command = ("storage", "format", "-c", str(server_properties(tmp_path)), "--ignore-formatted")
    offline.ok(*command, "--standalone")
    killed = tmp_path / "m"
    (killed / "meta.properties").rename(killed / "meta.properties.tmp")
    before = first_voters(killed)
    # Voters that no option asks for now would stay.
    refused = offline(*command, "--no-initial-controllers")
    assert f"{killed} is not empty: it has '__cluster_metadata-0'" in refused.err
    (killed / "__cluster_metadata-0" / "quorum-state").touch()
    refused = offline(*command, "--standalone")
    assert f"{killed} is not empty: it has 'quorum-state'" in refused.err
    (killed / "__cluster_metadata-0" / "quorum-state").unlink()
    offline.ok(*command, "--standalone")
    assert first_voters(killed) not in (None, before)


def test_segments_in_old_formats_are_rewritten(offline: CommandLine, tmp_path: Path) -> None:
    offline.ok("storage", "format", str(tmp_path))
    segment = tmp_path / "orders-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.write_bytes(OLD_MESSAGE)
    shown = offline.ok("storage", "upgrade-format", str(tmp_path), "--json").json
    assert shown == [{"segment": str(segment), "bytes": 37}]
    assert segment.read_bytes() == OLD_MESSAGE
    done = offline.ok("storage", "upgrade-format", str(tmp_path), "--apply", "--json").json
    assert done[0]["records"] == 1
    assert segment.read_bytes()[16] == 2
    assert "no segment has an old format" in offline.ok("storage", "upgrade-format", str(tmp_path)).out
