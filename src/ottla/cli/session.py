"""Run a command: connect, work, and turn failures into one line and an exit status.

A command is a coroutine that gets an open `Admin` (or opens its own client); all its exceptions end here.
Modules are imported when they are needed, as a short command spends most of its time starting up.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.cli.command_config import connect_to
from ottla.cli.errors import (
    FAILED,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    USAGE,
    CliError,
    Interrupted,
    OutputClosed,
    WrongUsage,
    did_you_mean,
)
from ottla.cli.options import Common
from ottla.cli.output import note, print_line

if TYPE_CHECKING:
    from types import FrameType

    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import TopicInfo
    from ottla.protocol.errors import KafkaError

T = TypeVar("T")

_NO_BROKER: Final = "Set --bootstrap-server or OTTLA_BOOTSTRAP_SERVERS; `ottla start` starts a broker."
_SECURED: Final = (
    "If the listener is secured, name the settings of the client with --command-config FILE: "
    "security.protocol=SSL or SASL_SSL, ssl.truststore.location, and ssl.keystore.location or a login."
)
# What an error says, and the setting that mends it; for TLS and SASL that of the file of --command-config.
_ADVICE: Final = (
    ("a TLS or SASL listener?", _SECURED),
    ("it speaks TLS", _SECURED),
    (
        "is it a TLS listener?",
        "If it is not, set security.protocol=PLAINTEXT or SASL_PLAINTEXT in the file of --command-config; "
        "--bootstrap-server has the port.",
    ),
    (
        "is not trusted",
        "Set ssl.truststore.location in the file of --command-config to the certificate of its CA, "
        "and ssl.truststore.type=PEM.",
    ),
    (
        "asks for a certificate",
        "Set ssl.keystore.location in the file of --command-config to the key and certificate of the client, "
        "and ssl.keystore.type=PEM; `ottla secure issue NAME` makes them.",
    ),
    ("has expired", "`ottla secure issue NAME --replace` renews a certificate, of a node with --host."),
    (
        "for another host name",
        "Use a name of the certificate in --bootstrap-server; `ottla secure show FILE` shows them.",
    ),
    ("TLS failed", "See the ssl settings in the file of --command-config."),
    ("TLS handshake failed", "See the ssl settings in the file of --command-config."),
    (
        "does the listener expect a login?",
        "Name the login of the client with --command-config FILE: security.protocol=SASL_SSL or "
        "SASL_PLAINTEXT, sasl.mechanism and sasl.jaas.config.",
    ),
    (
        "larger than max.request.size",
        "`--set max.request.size=BYTES` lets a producer send it; the topic takes it up to its "
        "max.message.bytes: `ottla configs alter --topic NAME --set max.message.bytes=BYTES`.",
    ),
    ("larger than buffer.memory", "`--set buffer.memory=BYTES` gives a producer more."),
    (
        "larger than max.message.bytes",
        "`ottla configs alter --topic NAME --set max.message.bytes=BYTES` has the topic take it.",
    ),
    (
        "No Authorizer is configured",
        "In server.properties it is authorizer.class.name; `ottla secure init` makes a node that has one.",
    ),
    (
        "Tokens cannot be managed over this kind of connection",
        "Log in with SASL, or with a certificate, and not with a token: --command-config FILE.",
    ),
    ("SASL GSSAPI failed", "GSSAPI is the default: set sasl.mechanism in the file of --command-config."),
)


def run(work: Coroutine[Any, Any, T], *, fast_loop: bool = False) -> T:
    """Run a command's coroutine. `fast_loop` uses uvloop, which pays off for large amounts of data."""
    import asyncio

    from ottla.protocol.errors import KafkaError

    try:
        if fast_loop:
            from ottla.runtime.loop import run as run_fast

            return run_fast(work)
        return asyncio.run(work)
    except KafkaError as error:
        raise cli_error(error) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end a command as Ctrl-C does: cleanly."""
    import signal

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # of a command in the background
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)  # asyncio's cancels the coroutine

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def with_admin(common: Common, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with a connected admin client."""

    async def run_connected() -> T:
        async with open_admin(common.bootstrap, common.timeout) as admin:
            return await work(admin)

    return run(run_connected())


def open_admin(bootstrap: str, timeout_s: float) -> Admin:
    from ottla.client.admin import Admin

    timeout_ms = max(int(timeout_s * 1000), 1)
    try:
        return Admin(
            connect_to(bootstrap),
            client_id="ottla-cli",
            request_timeout_ms=min(timeout_ms, 30_000),
            default_api_timeout_ms=timeout_ms,
        )
    except ValueError as error:
        raise WrongUsage(str(error).replace("bootstrap.servers", "--bootstrap-server", 1)) from None


def cli_error(error: KafkaError) -> CliError:
    from ottla.client.errors import (
        AuthenticationFailed,
        BootstrapFailed,
        ConnectionFailed,
        ConnectionLost,
        NotKafka,
        RequestTimedOut,
    )
    from ottla.protocol.errors import ErrorCode

    advised = (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    )
    advice = next((text for sign, text in _ADVICE if sign in error.message), "")
    if isinstance(error, BootstrapFailed | ConnectionFailed | NotKafka):
        return CliError(error.message, advice or _NO_BROKER, status=UNREACHABLE)
    if advice and (isinstance(error, AuthenticationFailed | ConnectionLost) or error.code in advised):
        return CliError(str(error), advice)
    if isinstance(error, RequestTimedOut):
        return CliError(
            f"{error.message}; what concerns the whole cluster waits while most of its controllers are down, "
            "and --timeout gives it more time"
        )
    return CliError(str(error))


async def topic_or_fail(admin: Admin, name: str) -> TopicInfo:
    """The topic. If it does not exist, the error suggests similar names."""
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        return await admin.topics.describe(name)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    raise await no_such_topic(admin, name)


async def no_such_topic(admin: Admin, name: str) -> CliError:
    known = [topic.name for topic in await admin.topics.list(include_internal=True)]
    hint = did_you_mean(name, known) or "; `ottla topics list` shows those that do"
    return CliError(f"topic {name} does not exist{hint}")


async def ensure_topic(admin: Admin, name: str, *, create: bool, partitions: int | None = None) -> None:
    """Make sure that a topic exists before records are written to it. A missing one is created only with
    `--create`: a mistyped name must not become a topic. The number of its partitions is printed, as a copy of
    another topic may need more than the cluster's default.
    """
    from ottla.protocol.errors import ErrorCode, KafkaError

    try:
        await admin.topics.describe(name)
        return
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    if not create:
        missing = str(await no_such_topic(admin, name))
        raise CliError(f"{missing}{'' if missing.endswith('?') else ';'} use --create to create it")
    await admin.topics.create(name, partitions=partitions or -1)
    count = partitions
    if count is None:
        try:
            count = len((await admin.topics.describe(name)).partitions)
        except KafkaError:  # the broker does not know it yet
            note(f"created topic {name}")
            return
    note(f"created topic {name} with {count} partition{'' if count == 1 else 's'}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change that cannot be undone. Without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question.rstrip('?')}: this cannot be undone; use --yes to do it without asking")
    import click

    if not click.confirm(question):
        raise CliError("nothing was changed")


def _open_closed_streams() -> None:
    """Have a command that was started with a closed stream (`>&-`) read nothing, or write to nowhere."""
    import os

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process runs


def exit_status_of(main: Callable[[], int]) -> int:
    """Run the application and return its exit status, whatever ended it."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # Characters that a terminal cannot show are escaped.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = main()
        sys.stdout.flush()
        return status
    except CliError as error:
        first, *more = error.lines
        for line in (f"ottla: {first}", *more):
            print_line(line, file=sys.stderr)
        return error.status
    except (KeyboardInterrupt, Interrupted):
        return INTERRUPTED
    except (BrokenPipeError, OutputClosed):
        # Buffered output must not be written at exit.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except UnicodeEncodeError as error:  # of an argument that has become a name
        print_line(f"ottla: {error.object} is not UTF-8", file=sys.stderr)
        return USAGE
    except OSError as error:
        print_line(
            f"ottla: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}",
            file=sys.stderr,
        )
        is_path = isinstance(
            error, (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
        )
        return USAGE if is_path else FAILED
