"""What the commands of `ottla pipeline` share: options, and how they find their project."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli import command_config
from ottla.cli.commands import Option
from ottla.cli.errors import REFUSED, CliError, WrongUsage
from ottla.cli.options import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from ottla.spark.pipelines.project import Project

ENVIRONMENT_VARIABLE: Final = "OTTLA_PIPELINE_ENV"
DEFAULT_MASTER: Final = "local[*]"
MAX_LOG_BYTES: Final = 64 * 1024 * 1024

ProjectPath = Annotated[
    str,
    Option(
        "--project",
        "-p",
        metavar="DIR",
        help="The project, or its spark-pipeline.yml; by default that of the current directory.",
    ),
]
Environment = Annotated[
    str | None,
    Option(
        "--env",
        "-e",
        metavar="NAME",
        envvar=ENVIRONMENT_VARIABLE,
        help="An environment of the project's environments.yml, as dev or prod.",
    ),
]
Brokers = Annotated[
    str | None,
    Option(
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT[,...]",
        help="Brokers to use instead of those of the project.",
    ),
]
Embedded = Annotated[
    bool, Option("--embedded", help="Start a node for the run; its data stays in the project's .ottla/.")
]
Master = Annotated[
    str,
    Option("--master", metavar="URL", help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://..."),
]
Settings = Annotated[
    list[str] | None,
    Option("--conf", "-c", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
Refresh = Annotated[
    list[str] | None,
    Option("--refresh", metavar="TABLE", help="Update only this table; may be repeated."),
]
FullRefresh = Annotated[
    list[str] | None,
    Option(
        "--full-refresh",
        metavar="TABLE",
        help="Empty this table and compute it again; may be repeated. A sink writes everything again.",
    ),
]
FullRefreshAll = Annotated[
    bool,
    Option("--full-refresh-all", help="Empty all tables and compute them again, and write all sinks again."),
]
RenamedFlow = Annotated[
    list[str] | None,
    Option(
        "--renamed-flow",
        metavar="OLD=NEW",
        help="A flow has another name now, and goes on where it was; may be repeated.",
    ),
]
RenamedSink = Annotated[
    list[str] | None,
    Option(
        "--renamed-sink",
        metavar="OLD=NEW",
        help="A sink has another name now, and its flows go on where they were; may be repeated.",
    ),
]
NewFlow = Annotated[
    list[str] | None,
    Option(
        "--new-flow",
        metavar="FLOW",
        help="A flow is new, and not one into the same sink that is gone; may be repeated.",
    ),
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show the log of Spark.")]


def project_of(path: str, environment: str | None = None) -> Project:
    """The project of a command, in one of its environments. The client settings that this names are those of
    the command, unless it was given others.
    """
    from ottla.spark.pipelines.environments import in_environment
    from ottla.spark.pipelines.project import ProjectError, find_project

    try:
        found = find_project(Path(path))
        if environment is not None:
            found = in_environment(found, environment)
    except ProjectError as error:
        raise CliError(str(error), status=REFUSED) from None
    except ModuleNotFoundError as error:
        raise CliError(f"{error.name} is not installed; `pip install 'ottla[spark]'` brings it") from None
    if found.client_config is not None and command_config.given() is None:
        command_config.use(str(found.client_config))
    return found


def is_from_variable(bootstrap: str) -> bool:
    """Whether the brokers of a command are those of the variable, and not given with it."""
    return os.environ.get(BOOTSTRAP_VARIABLE) == bootstrap


def brokers_of(project: Project, bootstrap: str | None) -> str | None:
    """The brokers that the command names, or the environment of the project: it alone says where it is."""
    if project.environment is None:
        return bootstrap
    if bootstrap is not None and not is_from_variable(bootstrap):
        raise WrongUsage("--env says where the brokers are; omit --bootstrap-server")
    return project.bootstrap_servers


@contextmanager
def state_directory(project: Project, *, only_reads: bool) -> Iterator[Path]:
    """Where a command keeps its logs, and a run what it knows. A command that only reads may be used by a
    person who cannot write there; its logs then go to a directory of its own.
    """
    state = project.state
    try:
        state.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(state, os.W_OK | os.X_OK)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
        is_writable = False
    if is_writable:
        yield state
    elif only_reads:
        with TemporaryDirectory(prefix="ottla-pipeline-") as own:
            yield Path(own)
    else:
        raise CliError(f"{state} cannot be written: a run keeps there what it has to know of the next one")


def log_file(path: Path) -> Any:
    """The log of Spark, which later runs append to until it is too large."""
    too_long = path.exists() and path.stat().st_size > MAX_LOG_BYTES
    return path.open("w" if too_long else "a", buffering=1)


@contextmanager
def naming_full_disks(
    directory: Path, consequence: str = "the next run completes what is left"
) -> Iterator[None]:
    """Make the error of a full disk say where it is, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = error.filename or directory
        raise CliError(f"{where}: {error.strerror}. Make room, and start again: {consequence}") from None
