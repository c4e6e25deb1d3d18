"""The command as a whole: its help, its errors, its start, and the real process."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ottla import __version__
from ottla.cli.app import COMMANDS, root
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.rows import for_each

LIMIT_S = 240


def heed_interrupts() -> None:
    """In a child before it starts: handle Ctrl-C, also if this run was started in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        **options,  # type: ignore[call-overload]
    )


def all_commands() -> Iterator[tuple[list[str], click.Command]]:
    top = root()
    context = click.Context(top)
    for name in COMMANDS:
        command = top.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                assert found is not None
                yield [name, sub], found
        else:
            yield [name], command


def test_help_lists_every_command(offline: CommandLine) -> None:
    text = offline.ok("--help").out
    for name, entry in COMMANDS.items():
        assert name in text
        assert entry.help in text


@for_each("path", [path for path, _ in all_commands()], ids="-".join)
def test_every_command_explains_itself(offline: CommandLine, path: list[str]) -> None:
    text = offline.ok(*path, "--help").out
    assert text.startswith(f"Usage: ottla {' '.join(path)}")


def test_help_shows_every_option(offline: CommandLine) -> None:
    for path, command in all_commands():
        text = offline.ok(*path, "--help").out
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert max(parameter.opts, key=len) in text, path


@for_each(
    "path",
    [path for path, command in all_commands() if any(p.required for p in command.params)],
    ids="-".join,
)
def test_what_has_to_be_given_is_asked_for(offline: CommandLine, path: list[str]) -> None:
    ended = offline(*path)
    assert ended.status == 2
    assert ended.err.startswith("ottla: missing ")
    assert ended.err.endswith(f"; see `ottla {' '.join(path)} --help`\n")


def test_every_command_speaks_json_and_every_option_is_explained() -> None:
    for path, command in all_commands():
        if path[0] in ("start", "console", "completion", "pipeline"):
            continue  # what they print is for a log, a shell, or Spark's own
        options = {name for p in command.params if isinstance(p, click.Option) for name in p.opts}
        assert "--json" in options, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not isinstance(parameter.type, click.Choice):
                assert parameter.help or parameter.metavar, (path, parameter.name)


@pytest.mark.parametrize("path", [[], ["topics"], ["log"]], ids=["ottla", "topics", "log"])
def test_a_command_that_is_not_named_is_chosen_from_the_help(offline: CommandLine, path: list[str]) -> None:
    ended = offline(*path)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == offline.ok(*path, "--help").out


CONNECTED: dict[str, str] = {
    "topics alter": "t --partitions 3",
    "topics create": "t",
    "topics delete": "other --yes",
    "topics describe": "t",
    "produce": "t hello",
    "consume": "t --from-beginning --exit",
    "groups delete": "g --yes",
    "groups delete-offsets": "g --topic t --yes",
    "groups describe": "g",
    "groups lag": "g",
    "groups reset-offsets": "g --to beginning --topic t",
    "share-groups dead-letters": "g",
    "share-groups delete": "g --yes",
    "share-groups delete-offsets": "g --topic t --yes",
    "share-groups describe": "g",
    "share-groups records": "g",
    "share-groups redrive": "g",
    "share-groups reject": "g --topic t --yes",
    "share-groups release": "g --topic t --yes",
    "share-groups skip": "g --topic t --yes",
    "share-groups reset-offsets": "g --to beginning --topic t",
    "streams-groups delete": "g --yes",
    "streams-groups delete-offsets": "g --topic t --yes",
    "streams-groups describe": "g",
    "streams-groups lag": "g",
    "streams-groups reset-offsets": "g --to beginning --topic t",
    "transactions abort": "t:0 --start-offset 0 --yes",
    "transactions describe": "x",
    "configs alter": "--topic t --set retention.ms=1",
    "configs describe": "--topic t",
    "users add": "u --password-file -",
    "users describe": "u",
    "users remove": "u --yes",
    "quotas remove": "--user u",
    "quotas set": "--user u producer_byte_rate=1000",
    "acls add": "--principal u --producer --topic t",
    "acls remove": "--principal u --yes",
    "tokens expire": "aGFtYWM=",
    "tokens renew": "aGFtYWM=",
    "delete-records": "t --before 0 --yes",
    "log-dirs move": "t:0 /tmp --broker 1",
    "tables compact": "t",
    "tables expire": "t",
    "tables repair": "t",
    "tables show": "t",
    "wait": "--timeout 60",
    "top": "--once",
    "trace": "t 0 0",
    "perf consume": "t --records 1",
    "perf latency": "t --records 1",
    "perf produce": "t --records 1",
}
"""Arguments of commands that need some; their own options all have defaults otherwise."""
APART = {"console", "pipeline run", "pipeline dry-run", "pipeline plan", "pipeline replay", "pipeline status"}
"""A server that goes on, and commands that need Spark or a project that has run: tests/spark has them. Those
of `ottla schemas` connect to a registry: tests/node/test_schema_registry_confluent.py."""


@pytest.mark.slow
def test_every_command_connects_with_its_command_config(ottla_tls_node: LocalNode, tmp_path: Path) -> None:
    line = CommandLine(ottla_tls_node.bootstrap_servers)
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in ottla_tls_node.client_settings.items()))
    connecting = [
        " ".join(path)
        for path, found in all_commands()
        if any(p.name == "command_config" for p in found.params) and path[0] != "schemas"
    ]
    first = ["topics create", "produce"]
    for name in [*first, *(each for each in connecting if each not in {*first, *APART})]:
        arguments = CONNECTED.get(name, "").split()
        ended = line(*name.split(), *arguments, "--command-config", str(file), stdin="a-password")
        assert ended.status in (0, 1), (name, ended.err)
        assert not any(word in ended.err for word in ("TLS", "Set --", "Traceback")), (name, ended.err)


def test_a_command_config_is_of_one_command_alone(offline: CommandLine, tmp_path: Path) -> None:
    misspelt = tmp_path / "client.properties"
    misspelt.write_text("security.protocol=NONE\n")
    with_it = offline("topics", "list", "--command-config", str(misspelt))
    without = offline("topics", "list")
    assert "security.protocol" in with_it.err
    assert "security.protocol" not in without.err


def test_start_has_its_help_in_order(offline: CommandLine) -> None:
    lines = offline.ok("start", "--help").out.splitlines()
    assert lines[0] == "Usage: ottla start [server.properties] [options]"
    assert not any(line.startswith("   ") for line in lines)


def test_the_version(offline: CommandLine) -> None:
    assert offline.ok("--version").out == f"ottla {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["tpics"], "topics"), (["topics", "lst"], "list"), (["consum", "x"], "consume")]
)
def test_a_mistyped_command_is_answered_with_a_suggestion(
    offline: CommandLine, arguments: list[str], meant: str
) -> None:
    ended = offline(*arguments)
    assert ended.status == 2
    assert f"did you mean {meant}?" in ended.err


def test_help_may_be_asked_for_as_a_command(offline: CommandLine) -> None:
    assert offline.ok("help").out == offline.ok("--help").out
    assert offline.ok("help", "topics", "create").out == offline.ok("topics", "create", "--help").out
    assert "did you mean topics" in offline.fails("help", "topcs", status=2).err


def test_what_is_done_otherwise_is_said(offline: CommandLine) -> None:
    assert "Ctrl-C or SIGTERM stops a node" in offline.fails("stop", status=2).err
    assert "`ottla doctor`" in offline.fails("status", status=2).err


def test_a_broker_that_is_down_is_reported_with_its_own_exit_status(offline: CommandLine) -> None:
    ended = offline("topics", "list")
    assert ended.status == 3
    assert "127.0.0.1:1" in ended.err
    assert "refused" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["topics", "list", "--no-such"], "no such option '--no-such'; see `ottla topics list --help`"),
        (["topics", "list", "--timout", "1"], "no such option '--timout'; did you mean '--timeout'?"),
        (["consume", "--topic", "t"], "--topic is no option here: `ottla consume TOPIC...`"),
        (["topics", "--list"], "--list is no option here: `ottla topics list`"),
        (["groups", "describe", "--group", "g"], "--group is no option here: `ottla groups describe GROUP`"),
        (
            ["topics", "create", "t", "-p", "0"],
            "0 is not in the range x>=1; see `ottla topics create --help`",
        ),
        (["quorum", "extra"], "got unexpected extra argument (extra); see `ottla quorum --help`"),
        (["topics", "list", "-b", "localhost:abc"], "--bootstrap-server: 'localhost:abc' is not host:port"),
        (["topics", "list", "-b", "::1"], "'::1' is not host:port; write IPv6 as [::1]:9092"),
        (["topics", "list", "-b", ","], "--bootstrap-server is empty"),
        (["consume", "t", "-b", "x:0"], "--bootstrap-server: 'x:0' is not host:port"),
        (["produce", "t", "v", "-b", "x:0"], "--bootstrap-server: 'x:0' is not host:port"),
        (["perf", "produce", "t", "-b", "x:0"], "--bootstrap-server: 'x:0' is not host:port"),
    ],
)
def test_what_makes_no_sense_is_one_line_with_a_status_of_its_own(
    offline: CommandLine, arguments: list[str], complaint: str
) -> None:
    ended = offline(*arguments)
    assert ended.status == 2
    assert ended.err.startswith("ottla: ")
    assert ended.err.count("\n") == 1
    assert complaint in ended.err


def test_one_of_several_brokers_is_enough(ottla_node: LocalNode, offline: CommandLine) -> None:
    offline.ok("cluster", "describe", "-b", f"127.0.0.1:1, {ottla_node.bootstrap_servers}")


def test_an_ipv6_address_is_printed_as_it_is_written(offline: CommandLine) -> None:
    ended = offline("cluster", "describe", "-b", "[::1]:1")
    assert ended.status == 3
    assert "[::1]:1: " in ended.err


def test_the_option_counts_over_the_environment(ottla_node: LocalNode, offline: CommandLine) -> None:
    offline.ok("cluster", "describe", "-b", ottla_node.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_completion(offline: CommandLine, shell: str) -> None:
    assert "_OTTLA_COMPLETE" in offline.ok("completion", shell).out


@pytest.mark.slow
def test_completion_knows_commands_and_options() -> None:
    def complete(words: str) -> list[str]:
        environment = {
            **os.environ,
            "_OTTLA_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        return [line.partition(",")[2] for line in process(env=environment).stdout.splitlines()]

    assert complete("ottla topi") == ["topics"]
    assert complete("ottla topics d") == ["delete", "describe"]
    assert "--from-beginning" in complete("ottla consume --from")


@pytest.mark.slow
def test_the_process_tells_its_status_and_keeps_stdout_for_results(ottla_node: LocalNode) -> None:
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVERS": ottla_node.bootstrap_servers}
    created = process("topics", "create", "by-process", env=environment)
    assert (created.returncode, created.stdout, created.stderr) == (0, "by-process: created\n", "")
    sent = process("produce", "by-process", env=environment, input="one\ntwo\n")
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
    read = process("consume", "by-process", "--from-beginning", "--exit", env=environment)
    assert read.stdout == "one\ntwo\n"
    missing = process("topics", "describe", "by-proces", env=environment)
    assert missing.returncode == 1
    assert missing.stdout == ""
    assert missing.stderr == "ottla: topic by-proces does not exist; did you mean by-process?\n"


@pytest.mark.slow
def test_what_the_terminal_cannot_show_is_shown_in_another_way(ottla_node: LocalNode) -> None:
    online = CommandLine(ottla_node.bootstrap_servers)
    online.ok("topics", "create", "beyond-ascii")
    online.ok("produce", "beyond-ascii", "größe")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    read = process(
        "consume",
        "beyond-ascii",
        "--from-beginning",
        "--exit",
        "-b",
        ottla_node.bootstrap_servers,
        env=environment,
    )
    assert (read.returncode, read.stdout, read.stderr) == (0, "gr\\xf6\\xdfe\n", "")


@pytest.mark.slow
def test_a_broker_that_says_nothing_is_waited_for_no_longer_than_asked(offline: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = offline("topics", "list", "-b", address, "--timeout", "1")
    assert ended.status == 3
    assert f"{address}: no answer to ApiVersions within 1000 ms" in ended.err


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(ottla_node: LocalNode) -> None:
    online = CommandLine(ottla_node.bootstrap_servers)
    online.ok("topics", "create", "long-output")
    online.ok("produce", "long-output", stdin="x" * 1000 + "\n" + ("y" * 1000 + "\n") * 2000)
    command = [sys.executable, "-m", "ottla", "consume", "long-output", "--from-beginning", "--exit"]
    with subprocess.Popen(
        [*command, "-b", ottla_node.bootstrap_servers], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"x" * 1000 + b"\n"
        running.stdout.close()
        assert running.wait(LIMIT_S) == 0
        assert running.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_a_consumer_with_its_status(ottla_node: LocalNode) -> None:
    online = CommandLine(ottla_node.bootstrap_servers)
    online.ok("topics", "create", "interrupted")
    online.ok("produce", "interrupted", "seen")
    command = [sys.executable, "-m", "ottla", "consume", "interrupted", "--from-beginning"]
    with subprocess.Popen(
        [*command, "-b", ottla_node.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"seen\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(LIMIT_S) == 130
        assert running.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_a_producer_that_waits_for_input(ottla_node: LocalNode) -> None:
    online = CommandLine(ottla_node.bootstrap_servers)
    online.ok("topics", "create", "half-typed")
    command = [sys.executable, "-m", "ottla", "produce", "half-typed", "--json"]
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*command, "-b", ottla_node.bootstrap_servers],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=heed_interrupts,
        ) as running:
            assert running.stderr is not None
            assert b"Ctrl-D" in running.stderr.readline()
            os.write(ours, b"a line\n")
            running.send_signal(signal.SIGINT)
            assert running.wait(LIMIT_S) == 130
            assert b"Traceback" not in running.stderr.read()
    finally:
        os.close(ours)
        os.close(theirs)


def modules_of(*arguments: str) -> set[str]:
    """The modules that a command imports."""
    script = (
        "import sys; from ottla.cli.main import main; status = main(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr); sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return set(ended.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [(["acls", "list"], "ottla secure init"), (["tokens", "list"], "--command-config")],
)
def test_what_a_node_without_security_does_not_have(
    ottla_node: LocalNode, arguments: list[str], advice: str
) -> None:
    assert advice in CommandLine(ottla_node.bootstrap_servers).fails(*arguments).err.splitlines()[1]


def test_the_port_of_the_console_is_no_broker() -> None:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.http_url is not None
        ended = CommandLine(node.http_url.removeprefix("http://")).fails("topics", "list", status=3)
    assert "it is an HTTP server" in ended.err


@pytest.mark.slow
def test_closed_streams_are_as_empty_ones(ottla_node: LocalNode) -> None:
    base = f"{sys.executable} -m ottla"
    for command in ("topics list >&-", "produce no-such-topic 2>&- <&-"):
        line = f"{base} {command} -b {ottla_node.bootstrap_servers}"
        ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=LIMIT_S)
        assert (ended.returncode, ended.stderr) == (int("produce" in command), ""), command


@pytest.mark.slow
def test_help_imports_neither_the_client_nor_what_draws_tables() -> None:
    imported = modules_of("--help")
    assert not {"rich", "asyncio", "ottla.client.admin", "ottla.node", "ottla.cli.topics"} & imported


@pytest.mark.slow
def test_a_short_command_imports_only_what_it_needs(ottla_node: LocalNode) -> None:
    imported = modules_of("topics", "list", "-b", ottla_node.bootstrap_servers)
    assert not {"rich", "uvloop", "ottla.node.node", "ottla.cli.consume", "ottla.client.consumer"} & imported


@pytest.mark.slow
def test_a_node_is_started_by_the_same_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        ready = running.stdout.readline()
        address = ready.partition("is ready: ")[2].partition(",")[0]
        try:
            assert CommandLine(address).ok("topics", "list", "--json").json == []
        finally:
            running.terminate()
        assert running.wait(LIMIT_S) == 0
