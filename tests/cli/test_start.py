"""What `ottla start` makes of its command line, and of the machine that it meets."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from ottla.cli import surroundings
from ottla.cli.app import TASKS
from ottla.cli.start import parse, settings_of, start
from ottla.cli.surroundings import (
    container,
    directory_remarks,
    existing_parent,
    file_system_of,
    is_network_file_system,
)
from tests.support.command_line import CommandLine

DELAY = "group.initial.rebalance.delay.ms"
MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
files:/export /data nfs4 rw 0 0
/dev/sdb1 /data/local xfs rw 0 0
me@host: /mnt/with\\040space fuse.sshfs rw 0 0
"""


def test_the_first_members_of_a_group_wait_for_no_others_without_a_file(tmp_path: Path) -> None:
    assert settings_of(parse([]))[DELAY] == "0"
    assert settings_of(parse(["--set", f"{DELAY}=500"]))[DELAY] == "500"
    assert DELAY not in settings_of(parse(["--set", "controller.quorum.voters=1@a:1,2@b:1"]))
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\n")
    assert DELAY not in settings_of(parse([str(file)]))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("num.partitons=3", "unknown setting num.partitons; did you mean num.partitions?"),
        ("zookeeper.connect=a:1", "unknown setting zookeeper.connect: Apache Kafka dropped it in 4.0; docs/"),
        ("qqq=1", "unknown setting qqq; docs/compatibility.md lists the settings"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused(
    setting: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert start(["--data-dir", str(data), "--set", setting]) == 2
    assert f"ottla: --set: {problem}" in capsys.readouterr().err
    assert not data.exists()


def test_a_setting_that_does_not_exist_is_refused_for_all_nodes_of_a_cluster(
    offline: CommandLine, tmp_path: Path
) -> None:
    data = tmp_path / "cluster"
    ended = offline("cluster", "up", "--data-dir", str(data), "--set", "num.partitons=3")
    assert ended.status == 2
    assert "did you mean num.partitions?" in ended.err
    assert not data.exists()


def test_help_groups_commands_by_task(offline: CommandLine) -> None:
    text = offline.ok("--help").out
    places = [text.index(f"\n{task}:\n") for task in TASKS]
    assert places == sorted(places)
    for task, entries in TASKS.items():
        for name in entries:
            assert f"\n  {name} " in text[text.index(f"\n{task}:\n") :]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "overlay"),
        ("/database", "overlay"),
        ("/data", "nfs4"),
        ("/data/ottla", "nfs4"),
        ("/data/local/ottla", "xfs"),
        ("/mnt/with space/ottla", "fuse.sshfs"),
        ("/dev/shm/x", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_network_file_systems_are_known_by_type() -> None:
    assert all(map(is_network_file_system, ("nfs", "nfs4", "cifs", "fuse.sshfs")))
    assert not any(map(is_network_file_system, ("ext4", "xfs", "btrfs", "fuse.ext2", "")))


def test_directories_have_remarks_for_what_may_hurt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert existing_parent(str(tmp_path / "a" / "b")) == str(tmp_path)
    monkeypatch.setattr(surroundings, "free_bytes", lambda _: 3 << 20)
    monkeypatch.setattr(surroundings, "file_system_of", lambda _: "nfs4")
    monkeypatch.setattr(surroundings, "free_files", lambda _: 17)
    network, room, files = directory_remarks([str(tmp_path)])
    assert "network file system (nfs4)" in network[0]
    assert room[0].startswith("3 MiB are left on the disk")
    assert files[0].startswith("17 more files fit")
    monkeypatch.setattr(surroundings, "free_bytes", lambda _: 1 << 40)
    monkeypatch.setattr(surroundings, "free_files", lambda _: None)
    monkeypatch.setattr(surroundings, "file_system_of", lambda _: "tmpfs")
    assert ["in memory (tmpfs)" in problem for problem, _ in directory_remarks([str(tmp_path)])] == [True]
    monkeypatch.setattr(surroundings, "file_system_of", lambda _: "ext4")
    assert list(directory_remarks([str(tmp_path)])) == []


def test_a_container_is_known_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_CONTAINER_FILES", (("/no/such/file", "Docker"), ("/", "Podman")))
    assert container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "Kubernetes"
    assert container({}) == "Podman"
    monkeypatch.setattr(surroundings, "_CONTAINER_FILES", ())
    assert container({"container": "lxc"}) == "a container"
    assert container({}) == ""


def test_examples_in_the_documentation_hold() -> None:
    result = doctest.testmod(surroundings)
    assert result.attempted > 0
    assert result.failed == 0
