"""`ottla start` as the application sees it: its name and where its options are explained.

`ottla.cli.main` runs it before the application is even built; this one is found by shell completion, and by
whoever puts options before the name.
"""

from __future__ import annotations

import typer


def register(root: typer.Typer) -> None:
    root.command(
        "start",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_start)


def _start(context: typer.Context) -> None:
    """Start a node: `ottla start --help` says more."""
    from ottla.cli.start import start

    raise typer.Exit(start(context.args))
