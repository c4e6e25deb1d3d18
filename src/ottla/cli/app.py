"""The application: the table of commands and the module of each.

Only the module of the command that runs is imported; for the others the table holds the line of `--help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import click

from ottla.cli.commands import SETTINGS, Argument, Group, make_command
from ottla.cli.errors import INTERRUPTED, WrongUsage
from ottla.cli.session import exit_status_of

COMPLETION_VARIABLE: Final = "_OTTLA_COMPLETE"
SUMMARY: Final = "A durable, distributed commit log that speaks Kafka."
SHELLS: Final = ("bash", "zsh", "fish")


class CommandEntry(NamedTuple):
    """A command: the module that defines it as `app`, and its line in `--help`."""

    module: str
    help: str


TASKS: Final[dict[str, dict[str, CommandEntry]]] = {
    "Run": {
        "start": CommandEntry("app", "Start a node."),
        "cluster": CommandEntry("cluster", "Run a cluster on this machine; describe any cluster."),
        "wait": CommandEntry("wait", "Wait until a node or a cluster is ready."),
        "doctor": CommandEntry("doctor", "Find what is wrong with a machine, a file or a cluster."),
        "top": CommandEntry("top", "Show what a cluster does, live."),
        "console": CommandEntry("console", "See and manage a cluster in the browser."),
    },
    "Topics and records": {
        "topics": CommandEntry("topics", "Create, list, describe, change and delete topics."),
        "produce": CommandEntry("produce", "Write records to a topic."),
        "consume": CommandEntry("consume", "Read records of a topic."),
        "offsets": CommandEntry("offsets", "Show offsets of partitions: first, end, or at a time."),
        "delete-records": CommandEntry("delete_records", "Delete the records of partitions up to an offset."),
        "schemas": CommandEntry("schemas", "List, show, register, check, delete and move schemas."),
        "configs": CommandEntry("configs", "Describe and change settings of topics, brokers and groups."),
    },
    "Groups and transactions": {
        "groups": CommandEntry("groups", "Show groups and their lag, reset or delete their offsets."),
        "share-groups": CommandEntry("share_groups", "Show share groups, their records and lag; move them."),
        "streams-groups": CommandEntry("streams_groups", "Show streams groups, their tasks and lag."),
        "transactions": CommandEntry("transactions", "List transactions, find and abort hanging ones."),
    },
    "Security": {
        "secure": CommandEntry("secure", "Make certificates and the settings that use them."),
        "users": CommandEntry("users", "List, add and remove users that log in with SCRAM."),
        "acls": CommandEntry("acls", "Let users do things with resources, or deny it."),
        "quotas": CommandEntry("quotas", "Limit users, client ids and addresses."),
        "tokens": CommandEntry("tokens", "Create, renew, expire and list delegation tokens."),
    },
    "Files and quorum": {
        "storage": CommandEntry("storage", "Show and format data directories; needs no node."),
        "log": CommandEntry("log_files", "Read the files of partitions; needs no node."),
        "log-dirs": CommandEntry("log_dirs", "Show the data directories of brokers and their replicas."),
        "quorum": CommandEntry("quorum", "Describe the quorum of controllers, and change its voters."),
        "zookeeper": CommandEntry("zookeeper", "Bring a cluster from ZooKeeper to a quorum; needs no node."),
    },
    "Spark and tables": {
        "pipeline": CommandEntry("pipeline", "Create, run and watch Spark pipelines over topics."),
        "trace": CommandEntry("trace", "Show the batch of Spark that wrote a record, and its inputs."),
        "tables": CommandEntry("tables", "Show the Iceberg tables of topics, merge and repair."),
    },
    "Try and measure": {
        "perf": CommandEntry("perf", "Measure throughput and latency."),
        "sim": CommandEntry("sim", "Run a simulated cluster under faults."),
        "completion": CommandEntry("app", "Print the completion script of a shell."),
    },
}
_NO_COMMANDS: Final = {
    "status": "`ottla top` shows a node or any cluster, `ottla cluster status` one of this machine, and "
    "`ottla doctor` what is wrong",
    "stop": "Ctrl-C or SIGTERM stops a node, and `ottla cluster down` a cluster of this machine",
}
"""What is done otherwise, by the names of commands that one would look for."""
COMMANDS: Final = {name: entry for entries in TASKS.values() for name, entry in entries.items()}


class Root(Group):
    """Knows its commands by name, and imports the one that runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _NO_COMMANDS:
            raise click.UsageError(f"there is no command {args[0]}: {_NO_COMMANDS[args[0]]}", context)
        return super().resolve_command(context, args)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        if entry.module == "app":
            return _OWN_COMMANDS[name]
        found: click.Command = import_module(f"ottla.cli.{entry.module}").app
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for task, entries in TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries.items()])


def root() -> Root:
    return Root("ottla", help=SUMMARY, no_args_is_help=False, context_settings=SETTINGS, params=[_version()])


def _version() -> click.Option:
    def show(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value and not context.resilient_parsing:
            from ottla import __version__

            print(f"ottla {__version__}")
            context.exit()

    return click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the version.",
    )


def _completion(shell: Annotated[str, Argument(choices=SHELLS, help="The shell.")]) -> None:
    """Print the completion script of a shell.

    For bash, put `eval "$(ottla completion bash)"` into ~/.bashrc; for zsh the same into ~/.zshrc; for fish,
    save the output as ~/.config/fish/completions/ottla.fish.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell.lower())
    assert found is not None
    print(found(root(), {}, "ottla", COMPLETION_VARIABLE).source())


@click.command(
    "start",
    help="Start a node: `ottla start --help` says more.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
@click.pass_context
def _start(context: click.Context) -> None:
    """`ottla.cli.main` runs `start` without this application; shell completion, and command lines with
    options before the name, come here.
    """
    from ottla.cli.start import start

    context.exit(start(context.args))


_OWN_COMMANDS: Final[dict[str, click.Command]] = {
    "start": _start,
    "completion": make_command(_completion, "completion"),
}


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    return exit_status_of(lambda: _run(list(arguments)))


def _run(arguments: list[str]) -> int:
    try:
        status = root().main(
            arguments, prog_name="ottla", complete_var=COMPLETION_VARIABLE, standalone_mode=False
        )
    except click.ClickException as error:
        raise _usage_error(error) from None
    except click.Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _usage_error(error: click.ClickException) -> WrongUsage:
    """The error of click as one line, like every other error, with the help page to read."""
    problem = error.format_message().rstrip(".").replace(". Did you mean", "; did you mean")
    context = error.ctx if isinstance(error, click.UsageError) else None
    see = ""
    if context is not None:
        if isinstance(error, click.NoSuchOption) and (meant := _meant_by(error.option_name, context)):
            problem, see = f"{error.option_name} is no option here", f": `{context.command_path} {meant}`"
        elif not problem.endswith("?"):
            see = f"; see `{context.command_path} --help`"
    return WrongUsage(problem[:1].lower() + problem[1:] + see)


def _meant_by(option: str, context: click.Context) -> str | None:
    """The command or the argument that is an option in Kafka's tools, as `--list` and `--topic`, if there is
    one.
    """
    name = option.lstrip("-")
    if isinstance(context.command, click.Group) and name in context.command.list_commands(context):
        return name
    for each in context.command.params:
        if isinstance(each, click.Argument):
            shown = each.make_metavar(context)
            if shown.strip("[].").lower() == name:
                return shown
    return None
