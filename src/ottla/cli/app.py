"""All commands but `start`, which `ottla.cli.main` runs itself; here it is only explained."""

from __future__ import annotations

from collections.abc import Sequence

import typer

app = typer.Typer(
    name="ottla",
    help="A durable, distributed commit log that speaks Kafka.",
    no_args_is_help=True,
    add_completion=True,
)


@app.callback()
def options() -> None:
    """A durable, distributed commit log that speaks Kafka."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def start(context: typer.Context) -> None:
    """Start a node: `ottla start --help` says more."""
    from ottla.cli.start import start as run_node

    raise typer.Exit(run_node(context.args))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    try:
        app(list(arguments), prog_name="ottla")
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 1
    return 0
