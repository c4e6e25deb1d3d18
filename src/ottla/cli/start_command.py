"""`ottla start` as the application sees it: its name and where its options are explained.

`ottla.cli.main` runs it before the application is even loaded; this one is found by shell completion, and by
whoever puts options before the name.
"""

from __future__ import annotations

import click

HELP = "Start a node: `ottla start --help` says more."


@click.command(
    "start",
    help=HELP,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
@click.pass_context
def app(context: click.Context) -> None:
    from ottla.cli.start import start

    context.exit(start(context.args))
