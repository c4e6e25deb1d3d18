"""`ottla doctor` over broken set-ups: each is made, and the diagnosis has to name it and say what to type."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.cli import diagnose_machine as machine
from ottla.cli import diagnose_node as configuration
from ottla.cli import surroundings
from ottla.cli.diagnose_node import port_problem
from ottla.cli.diagnosis import Diagnosis, Severity
from ottla.cli.doctor import diagnose
from ottla.node.config.listeners import Endpoint
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support.certificates import authority, now_ms, server_settings, write_pem
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

NOT_RESOLVED = "no-such-host.invalid"
LIMIT_S = 120


def diagnosis(data: Path | None = None, bootstrap: str | None = None, **settings: str) -> list[Diagnosis]:
    """What is said of a node with these settings, whose names have `_` for a dot."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given.setdefault("listeners", "PLAINTEXT://127.0.0.1:0")
    return diagnose([] if data is None else ["--data-dir", str(data)], given, bootstrap, LIMIT_S)


def of_cluster(bootstrap: str) -> list[Diagnosis]:
    return diagnose([], {}, bootstrap, LIMIT_S)


def the_wrong_one(found: list[Diagnosis], subject: str) -> Diagnosis:
    """The one finding of what is wrong, which has an advice; all else has to be fine or doubtful."""
    (only,) = (each for each in found if each.severity is Severity.WRONG)
    assert only.subject == subject
    assert only.advice
    return only


def the_doubtful_one(found: list[Diagnosis], subject: str) -> Diagnosis:
    (only,) = (each for each in found if each.severity is Severity.DOUBTFUL and each.subject == subject)
    assert not any(each.severity is Severity.WRONG for each in found), found
    assert only.advice
    return only


# The machine


def test_a_python_that_is_too_old() -> None:
    found = machine.check_python((3, 9, 2))
    assert found.severity is Severity.WRONG
    assert found.problem == "Python 3.9.2 is too old"
    assert "install Python 3.11" in found.advice


def test_an_old_python_gets_to_know_what_it_needs() -> None:
    """What such a Python reads first has only syntax that it knows, and says it before any other import."""
    import ast

    text = (Path(machine.__file__).parents[1] / "__init__.py").read_text()
    parsed = ast.parse(text, feature_version=(3, 7))
    first = next(each for each in parsed.body if isinstance(each, ast.If))
    assert "version_info < (3, 11)" in ast.unparse(first.test)
    code = ast.unparse(first).replace("sys.version_info", "version_info")
    with pytest.raises(ImportError, match=r"Ottla needs Python 3\.11 or newer, and this is 3\.9"):
        exec(code, {"version_info": (3, 9)})


def test_a_package_that_is_missing() -> None:
    (found,) = machine.check_packages(["click", "no-such-package-at-all"])
    assert found.severity is Severity.WRONG
    assert found.problem == "no-such-package-at-all is not installed"
    assert found.advice.endswith("-m pip install no-such-package-at-all`")


@pytest.mark.slow
def test_few_open_files_and_little_memory() -> None:
    """A process with a limit of its own is asked."""
    asked = subprocess.run(
        ["sh", "-c", f"ulimit -n 256 && {sys.executable} -m ottla doctor --json --listen 127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "a node may open 256 files" in asked.stdout
    assert "ulimit -n 100000" in asked.stdout
    assert "64 MiB" in machine.check_memory(64 << 20).problem
    assert machine.check_memory(None).severity is Severity.FINE


def test_a_clock_that_is_years_behind() -> None:
    (found,) = machine.check_clock(86_400.0)
    assert "1970-01-02" in found.problem
    assert list(machine.check_clock(now_ms() / 1000)) == []


def test_a_system_that_is_too_old() -> None:
    (found,) = machine.check_system((3, 10))
    assert found.severity is Severity.DOUBTFUL
    assert list(machine.check_system((6, 1))) == []


def test_this_machine_can_run_a_node(tmp_path: Path) -> None:
    found = diagnosis(tmp_path / "data")
    assert not any(each.severity is Severity.WRONG for each in found), found
    assert not (tmp_path / "data").exists()


# The configuration


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    found = diagnose([str(tmp_path / "server.properties")], {}, None, LIMIT_S)
    assert "cannot read" in the_wrong_one(found, str(tmp_path / "server.properties")).problem


def test_a_value_that_does_not_fit(tmp_path: Path) -> None:
    only = the_wrong_one(diagnosis(tmp_path, num_partitions="three"), "the settings")
    assert "three for configuration num.partitions" in only.problem


def test_a_name_with_a_mistake_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"num.partitons=3\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n")
    only = the_doubtful_one(diagnose([str(file)], {}, None, LIMIT_S), str(file))
    assert only.problem == "unknown setting num.partitons; did you mean num.partitions?"


def test_a_lone_node_whose_internal_topics_need_three(tmp_path: Path) -> None:
    found = diagnosis(
        tmp_path / "data",
        process_roles="broker,controller",
        node_id="1",
        listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        controller_listener_names="CONTROLLER",
        controller_quorum_voters="1@localhost:9093",
    )
    only = the_doubtful_one(found, "the settings")
    assert "consumer groups do not work" in only.problem
    assert "offsets.topic.replication.factor=1" in only.advice


def test_more_replicas_in_sync_than_there_are(tmp_path: Path) -> None:
    found = diagnosis(tmp_path / "data", default_replication_factor="2", min_insync_replicas="3")
    assert "take no records with acks=all" in the_doubtful_one(found, "the settings").problem


def test_a_voter_whose_name_is_unknown(tmp_path: Path) -> None:
    found = diagnosis(
        tmp_path / "data",
        process_roles="broker",
        node_id="4",
        listeners="PLAINTEXT://127.0.0.1:0",
        controller_listener_names="CONTROLLER",
        controller_quorum_voters=f"1@{NOT_RESOLVED}:9093,2@localhost:9093",
    )
    assert f"the name {NOT_RESOLVED} of 1@" in the_wrong_one(found, "controller.quorum.voters").problem


def test_a_disk_whose_syncs_mean_nothing_where_records_are_to_be_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "file_system_of", lambda _: "ext4")
    monkeypatch.setattr(surroundings, "sync_seconds", lambda _: 2e-6)
    assert not [each for each in diagnosis(tmp_path / "data") if each.subject == "durability"]
    only = the_doubtful_one(diagnosis(tmp_path / "data", log_durability="disk"), "durability")
    assert "takes 2 µs" in only.problem
    monkeypatch.setattr(surroundings, "sync_seconds", lambda _: 0.001)
    assert not [
        each for each in diagnosis(tmp_path / "data", log_durability="disk") if each.subject == "durability"
    ]
    monkeypatch.setattr(surroundings, "file_system_of", lambda _: "tmpfs")
    only = the_doubtful_one(diagnosis(tmp_path / "data", log_durability="disk"), "durability")
    assert "in memory (tmpfs)" in only.problem


def test_the_time_of_a_sync_is_measured_without_a_trace(tmp_path: Path) -> None:
    took_s = surroundings.sync_seconds(str(tmp_path / "data"))
    assert took_s is None or took_s > 0
    assert not list(tmp_path.iterdir())


# Listeners


@contextmanager
def taken_port() -> Iterator[int]:
    """A port of a process that answers nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    with taken_port() as port:
        only = the_wrong_one(
            diagnosis(tmp_path / "data", listeners=f"PLAINTEXT://127.0.0.1:{port}"), "listeners"
        )
    assert only.problem == f"127.0.0.1:{port} is in use by another process"
    assert f"ss -ltnp 'sport = :{port}'" in only.advice
    assert only.advice.endswith(f"--listen 127.0.0.1:{port + 10 if port < 65_000 else port - 10}")


def test_a_port_of_a_node_with_other_data(tmp_path: Path, ottla_node: LocalNode) -> None:
    """It is what a user sees who asks in another directory than that of `ottla start`."""
    address = ottla_node.bootstrap_servers
    found = diagnosis(tmp_path / "data", listeners=f"PLAINTEXT://{address}")
    only = the_doubtful_one(found, "listeners")
    assert only.problem.startswith(f"{address} is of a node that runs with other data")
    assert any("1 brokers" in each.problem for each in found), "the node that runs is looked at too"


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    only = the_wrong_one(diagnosis(tmp_path / "data", listeners="PLAINTEXT://192.0.2.1:9092"), "listeners")
    assert only.problem == "192.0.2.1 is not an address of this machine"
    assert "advertised.listeners=PLAINTEXT://192.0.2.1:9092" in only.advice
    settings = server_settings(tmp_path) | {"listeners": "SSL://192.0.2.1:9093"}
    only = the_wrong_one(
        diagnose(["--data-dir", str(tmp_path / "data")], settings, None, LIMIT_S), "listeners"
    )
    assert only.advice.startswith(
        "listeners=SSL://0.0.0.0:9093, and advertised.listeners=SSL://192.0.2.1:9093; "
    )


def test_a_name_that_is_not_resolved(tmp_path: Path) -> None:
    found = diagnosis(tmp_path / "data", listeners=f"PLAINTEXT://{NOT_RESOLVED}:9092")
    assert f"the name {NOT_RESOLVED} cannot be resolved" in the_wrong_one(found, "listeners").problem


@contextmanager
def without_privileges() -> Iterator[None]:
    """As a user without rights, if the test runs as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_port_for_the_privileged() -> None:
    first_free = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if not first_free.exists() or int(first_free.read_text()) <= 81:
        pytest.skip("every user may listen on port 81 here")
    with without_privileges():
        problem = port_problem(Endpoint("SSL", SecurityProtocol.SSL, "127.0.0.1", 81))
    assert problem is not None
    assert "below 1024 are for privileged processes" in problem.text
    assert problem.advice == "choose a port from 1024 on: listeners=SSL://127.0.0.1:9092"


def test_advertised_to_nowhere(tmp_path: Path) -> None:
    found = diagnosis(tmp_path / "data", advertised_listeners=f"PLAINTEXT://{NOT_RESOLVED}:9092")
    assert NOT_RESOLVED in the_doubtful_one(found, "advertised.listeners").problem


def test_a_container_that_listens_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "container", lambda: "Docker")
    only = the_doubtful_one(diagnosis(tmp_path / "data"), "advertised.listeners")
    assert "listeners=PLAINTEXT://0.0.0.0:0," in only.advice


def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    settings = server_settings(tmp_path)
    ended = authority().issue("CN=old", now_ms(), hosts=("localhost",), days=-2)
    settings["ssl.keystore.location"] = write_pem(tmp_path, "old", ended)
    found = diagnose(["--data-dir", str(tmp_path / "data")], settings, None, LIMIT_S)
    only = the_wrong_one(found, "TLS of SSL")
    assert "CN=old has expired" in only.problem
    assert "ottla secure issue" in only.advice


def test_a_key_store_that_is_not_there(tmp_path: Path) -> None:
    settings = server_settings(tmp_path, ssl_keystore_location=str(tmp_path / "gone.pem"))
    found = diagnose(["--data-dir", str(tmp_path / "data")], settings, None, LIMIT_S)
    assert "gone.pem" in the_wrong_one(found, "TLS of SSL").problem


# Directories


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "is a file" in the_wrong_one(diagnosis(tmp_path / "data"), str(tmp_path / "data")).problem


def test_a_directory_without_the_right_to_write(tmp_path: Path) -> None:
    # A user without rights has to get to it.
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    tmp_path.chmod(0o511)
    with without_privileges():
        problem = configuration._unusable(str(tmp_path / "data"))
    assert problem is not None
    assert problem[0] == f"no permission to write to {tmp_path}"
    assert "chown" in problem[1]


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    only = the_wrong_one(diagnosis(tmp_path), str(tmp_path))
    assert "it has 'notes.txt'" in only.problem


def properties(directory: Path, node: int = 1, cluster: str = "4L6g3nShT-eMCtK--X86sw") -> Path:
    directory.mkdir(mode=0o700)
    (directory / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id={node}\n")
    return directory


def test_a_directory_of_another_node(tmp_path: Path) -> None:
    found = diagnosis(properties(tmp_path / "data", node=7), node_id="1")
    assert "belongs to node 7, and this node is 1: set node.id to 7" in the_wrong_one(found, "data").problem


def test_a_directory_of_another_cluster(tmp_path: Path) -> None:
    found = diagnosis(properties(tmp_path / "data"), cluster_id="NjX7PqHSRUmpKQSZEDlZuw")
    assert "the data of another cluster" in the_wrong_one(found, "data").problem


def test_two_directories_of_two_clusters(tmp_path: Path) -> None:
    one = properties(tmp_path / "one")
    two = properties(tmp_path / "two", cluster="NjX7PqHSRUmpKQSZEDlZuw")
    assert "another cluster" in the_wrong_one(diagnosis(None, log_dirs=f"{one},{two}"), "data").problem


def test_a_directory_of_a_broker_on_zookeeper(tmp_path: Path) -> None:
    data = properties(tmp_path / "data")
    (data / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\n")
    assert "ottla zookeeper import" in the_wrong_one(diagnosis(data, node_id="3"), "data").problem


def test_a_directory_that_all_may_read(tmp_path: Path) -> None:
    data = properties(tmp_path / "data")
    data.chmod(0o755)
    only = the_doubtful_one(diagnosis(data), str(data))
    assert only.advice == f"`chmod -R go-rwx {data}`"


# Clusters


def test_no_broker_at_all() -> None:
    only = the_wrong_one(of_cluster("127.0.0.1:1"), "127.0.0.1:1")
    assert "connection refused" in only.problem
    assert "ottla start" in only.advice


def test_an_address_that_is_none() -> None:
    assert "--bootstrap-server" in the_wrong_one(of_cluster("localhost:many"), "localhost:many").problem


def test_a_node_that_is_fine(ottla_fresh_node: LocalNode) -> None:
    found = of_cluster(ottla_fresh_node.bootstrap_servers)
    assert not [each for each in found if each.severity is Severity.WRONG]
    assert any("1 brokers" in each.problem for each in found)


def test_the_command_says_what_to_type_and_ends_with_one(offline: CommandLine) -> None:
    ended = offline("doctor")
    assert ended.status == 1
    assert "WRONG  127.0.0.1:1: no broker can be reached" in ended.out
    assert "1 thing is wrong" in ended.err


def test_plain_text_where_tls_is_spoken(ottla_tls_node: LocalNode) -> None:
    server = ottla_tls_node.bootstrap_servers
    assert "security.protocol=SSL" in the_wrong_one(of_cluster(server), server).advice


def test_no_login_where_one_is_needed(ottla_sasl_node: LocalNode) -> None:
    server = ottla_sasl_node.bootstrap_servers
    assert "SASL" in the_wrong_one(of_cluster(server), server).advice


def test_two_clusters_at_once(ottla_node: LocalNode) -> None:
    with LocalNode() as other:
        both = f"{ottla_node.bootstrap_servers},{other.bootstrap_servers}"
        only = the_wrong_one(of_cluster(both), both)
    assert "different clusters" in only.problem


def test_a_broker_that_sends_clients_elsewhere() -> None:
    """The failure that a listener in a container makes: the first address answers, the next one does not."""
    with LocalNode({"advertised.listeners": f"PLAINTEXT://{NOT_RESOLVED}:9092"}) as node:
        only = the_wrong_one(of_cluster(node.bootstrap_servers), "broker 1")
    assert f"it tells clients to connect to {NOT_RESOLVED}:9092" in only.problem
    assert "advertised.listeners" in only.advice


def test_a_lone_broker_without_consumer_groups() -> None:
    with LocalNode({"offsets.topic.replication.factor": 3}) as node:
        only = the_wrong_one(of_cluster(node.bootstrap_servers), "offsets.topic.replication.factor")
    assert only.problem == "there are no consumer groups: __consumer_offsets needs 3 brokers, and 1 are there"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_broker_that_is_down(ottla_fresh_cluster: LocalCluster) -> None:
    cluster = ottla_fresh_cluster
    ottla = CommandLine(cluster.bootstrap_servers)
    ottla.ok("topics", "create", "lonely", "--partitions", "6", "--replication-factor", "1")
    ottla.ok("topics", "create", "copied", "--partitions", "3", "--replication-factor", "3")
    cluster.kill(cluster.leader("lonely"))
    survivors = ",".join(node.bootstrap_servers for node in cluster.nodes if node.pid is not None)

    def seen() -> list[Diagnosis]:
        return [each for each in of_cluster(survivors) if each.subject == "partitions"]

    wait_until(lambda: len(seen()) == 2)
    leaderless, behind = seen()
    assert re.search(r"have no leader.*lonely-", leaderless.problem)
    assert "start broker" in leaderless.advice
    assert "not in sync" in behind.problem
