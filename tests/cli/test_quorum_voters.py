"""`ottla quorum --add` and `--remove`: who votes, on a cluster of processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ottla.testing.cluster_plan import free_ports
from tests.support.command_line import CommandLine, Ended
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


def members(ended: Ended) -> dict[int, str]:
    return {member["node"]: member["role"] for member in ended.json["members"]}


def roles(command: CommandLine, *options: str) -> dict[int, str]:
    return members(command.ok("quorum", *options, "--json"))


@pytest.mark.slow
def test_a_controller_becomes_a_voter_and_the_first_one_none(tmp_path: Path, offline: CommandLine) -> None:
    client, *of_controllers = free_ports(3)
    shared = [
        f"controller.quorum.bootstrap.servers=127.0.0.1:{of_controllers[0]}",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    ]
    nodes = {
        11: ("controller", f"CONTROLLER://127.0.0.1:{of_controllers[0]}", "--standalone"),
        12: ("controller", f"CONTROLLER://127.0.0.1:{of_controllers[1]}", "--no-initial-controllers"),
        1: ("broker", f"PLAINTEXT://127.0.0.1:{client}", "--no-initial-controllers"),
    }
    with contextlib.ExitStack() as stack:
        for id, (role, listeners, begins) in nodes.items():
            own = [f"process.roles={role}", f"node.id={id}", f"listeners={listeners}"]
            file = tmp_path / f"{id}.properties"
            file.write_text("\n".join([*shared, *own, f"log.dirs={tmp_path / str(id)}"]))
            offline.ok("storage", "format", "-c", str(file), "-t", CLUSTER_ID, begins)
            stack.enter_context(NodeProcess(None, str(file), listen=None))
        command = CommandLine(f"127.0.0.1:{client}")

        def all_are_known() -> bool:
            """An observer is known to the leader when it has fetched from it."""
            ended = command("quorum", "--json")
            expected = {11: "leader", 12: "observer", 1: "observer"}
            return ended.status == 0 and members(ended) == expected

        wait_until(all_are_known, "the leader does not know its observers")
        assert "expected ID@HOST:PORT" in command("quorum", "--add", "12").err
        assert command.ok("cluster", "describe", "--json").json["controller"] == 11
        assert "node 11 is already a voter" in command("quorum", "--add", "11@127.0.0.1:1").err
        assert "node 98 is not an observer" in command("quorum", "--add", "98@127.0.0.1:1").err
        assert "node 99 is no voter" in command("quorum", "--remove", "99").err
        added = roles(command, "--add", f"12@127.0.0.1:{of_controllers[1]}")
        assert added == {11: "leader", 12: "voter", 1: "observer"}
        command.ok("quorum", "--remove", "11")

        def the_other_leads() -> bool:
            """Between the two there may be no leader."""
            ended = command("quorum", "--json")
            return ended.status == 0 and {12: "leader"}.items() <= members(ended).items()

        wait_until(the_other_leads, "no controller leads")
        assert roles(command).get(11) in (None, "observer")
