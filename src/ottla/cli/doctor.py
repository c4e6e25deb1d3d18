"""`ottla doctor`: look at a machine, a configuration and a cluster, and say what is wrong and what to type.

It changes nothing. The exit status is 0 if nothing is wrong, also where something is doubtful, and 1 else.
"""

from __future__ import annotations

from typing import Annotated, Final

from ottla.cli.commands import Argument, Option, command
from ottla.cli.diagnosis import Diagnosis, Severity, wrong
from ottla.cli.errors import FAILED, CliError
from ottla.cli.options import BOOTSTRAP_VARIABLE, Json, named_values
from ottla.cli.output import print_json, print_line
from ottla.cli.session import run

DEFAULT_SECONDS: Final = 10.0
_MARKS: Final = {Severity.WRONG: "WRONG", Severity.DOUBTFUL: "doubt", Severity.FINE: "fine "}
_DEFAULTS: Final = "the settings"


@command(None, "doctor")
def app(
    file: Annotated[
        str | None,
        Argument(metavar="[server.properties]", help="The file of the node; the defaults without one."),
    ] = None,
    data_dir: Annotated[
        str | None, Option("--data-dir", metavar="DIR", help="The data directory, as of `ottla start`.")
    ] = None,
    listen: Annotated[
        str | None,
        Option("--listen", metavar="HOST:PORT", help="Where clients connect, as of `ottla start`."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="A setting of the node; may be repeated."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        Option(
            "--bootstrap-server",
            "-b",
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT[,...]",
            help="A cluster to look at, of any Kafka; without it the node at the address of this one.",
        ),
    ] = None,
    timeout: Annotated[
        float, Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for each broker.")
    ] = DEFAULT_SECONDS,
    as_json: Json = False,
) -> None:
    """Find what is wrong with a machine, a file or a cluster.

    Looks at this machine, at a configuration with its data directories and listeners, as `ottla start` would
    take them, and with --bootstrap-server at a cluster, as clients meet it. Each line says what is wrong and
    what to type. Nothing is changed. The exit status is 1 if something is wrong.
    """
    arguments = [
        *([file] if file is not None else []),
        *_given("--data-dir", data_dir),
        *_given("--listen", listen),
    ]
    found = diagnose(arguments, named_values("--set", settings or ()), bootstrap, timeout)
    if as_json:
        print_json(
            [
                {
                    "severity": each.severity.value,
                    "subject": each.subject,
                    "problem": each.problem,
                    "advice": each.advice or None,
                }
                for each in found
            ]
        )
    else:
        for each in found:
            print_line(f"{_MARKS[each.severity]}  {each.subject}: {each.problem}")
            if each.advice:
                print_line(f"       {each.advice}")
    count = sum(each.severity is Severity.WRONG for each in found)
    if count:
        raise CliError(f"{count} {'thing is' if count == 1 else 'things are'} wrong", status=FAILED)


def diagnose(
    arguments: list[str], settings: dict[str, str], bootstrap: str | None, timeout_s: float
) -> list[Diagnosis]:
    """All findings: those of the machine, of what `ottla start` would get, and of the cluster."""
    from ottla.cli.diagnose_cluster import check_cluster
    from ottla.cli.diagnose_machine import check_machine

    found = list(check_machine())
    of_node, running_at = _diagnose_node(arguments, settings, timeout_s)
    if bootstrap is None or arguments or settings:
        found += of_node
    bootstrap = bootstrap or running_at
    if bootstrap is not None:
        found += run(check_cluster(bootstrap, timeout_s))
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def _diagnose_node(
    arguments: list[str], settings: dict[str, str], timeout_s: float
) -> tuple[list[Diagnosis], str | None]:
    """The findings, and where the node answers if it runs."""
    from ottla.cli.diagnose_cluster import cluster_at
    from ottla.cli.diagnose_node import (
        check_directories,
        check_listeners,
        check_settings,
        check_tls,
    )
    from ottla.cli.start import Options, UsageError, parse, settings_of

    options = Options()
    try:
        options = parse(arguments)
        options.settings = settings
        given = settings_of(options)
    except UsageError as error:
        source = options.file or _DEFAULTS
        return [wrong(source, str(error), "`ottla start --help` shows what it takes")], None
    config, found = check_settings(given, options.file or _DEFAULTS)
    if config is None:
        return found, None
    holder, of_directories = check_directories(config)
    found += of_directories
    running_at, of_listeners = check_listeners(
        config, holder, lambda address: run(cluster_at(address, timeout_s))
    )
    found += of_listeners
    found += check_tls(config)
    return found, running_at


def _given(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]
