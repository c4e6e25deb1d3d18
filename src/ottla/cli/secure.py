"""`ottla secure`: certificates, and the settings of a node and its clients that use them.

    DIR/ca.crt, ca.key        the authority: every client trusts the first, the second stays where it is safe
    DIR/node.pem              the key and certificate of a node
    DIR/admin.pem             those of the first user, who may do everything
    DIR/server.properties     a node with TLS on its listener, which asks clients for certificates
    DIR/client.properties     for --command-config, and for any client of Kafka

Files with keys can be read by their owner only, and no existing file is ever replaced.
"""

from __future__ import annotations

import time
from pathlib import Path
from secrets import token_urlsafe
from shlex import quote
from typing import Annotated, Final

import click

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import FAILED, CliError, WrongUsage
from ottla.cli.options import Json
from ottla.cli.output import print_json, print_line, print_table

DEFAULT_DIRECTORY: Final = "./ottla-security"
DEFAULT_PORT: Final = 9093
ORGANIZATION: Final = "O=Ottla"
_DAY_MS: Final = 86_400_000
# A node that is reached by one of these names listens on this machine only.
_LOOPBACK: Final = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "[::1]"}
_MECHANISM: Final = "SCRAM-SHA-512"
_LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

app = group("secure", "Make certificates, and the settings of a node and clients that use them.")

Directory = Annotated[str, Option("--dir", "-d", metavar="DIR", help="Where the files are.")]
Days = Annotated[int, Option("--days", min=1, max=36_500, help="How long certificates are valid.")]


@command(app, "init")
def init(
    directory: Directory = DEFAULT_DIRECTORY,
    hosts: Annotated[
        list[str] | None,
        Option("--host", metavar="HOST", help="A name or address of the node; may be repeated."),
    ] = None,
    admin: Annotated[str, Option("--admin", metavar="NAME", help="The first user.")] = "admin",
    users: Annotated[
        list[str] | None,
        Option("--user", metavar="NAME", help="A further user, with a password; may be repeated."),
    ] = None,
    passwords: Annotated[
        bool, Option("--passwords", help="Users log in with SCRAM instead of certificates.")
    ] = False,
    port: Annotated[int, Option("--port", min=1, max=65_535, help="The listener's port.")] = DEFAULT_PORT,
    data_dir: Annotated[
        str, Option("--data-dir", metavar="DIR", help="The data directory of the node.")
    ] = "./ottla-data",
    days: Days = 825,
    as_json: Json = False,
) -> None:
    """Make a CA, certificates of a node and of an admin, server.properties and client.properties.

    The node encrypts its connections, knows clients by their certificates, and lets only the admin in until
    ACLs say otherwise. With --passwords or --user, clients log in with SCRAM instead: the data directory is
    formatted with the first users, and NAME.properties has what each needs. `ottla start
    DIR/server.properties` starts the node.
    """
    import socket

    from ottla.security.tls.authority import CertificateAuthority

    path, data = Path(directory).absolute(), Path(data_dir).absolute()
    if (path / "ca.key").exists():
        raise CliError(f"{path} has a CA already; `ottla secure issue` makes further certificates with it")
    now_ms = int(time.time() * 1000)
    names = hosts or [socket.gethostname()]
    authority = CertificateAuthority.create(f"CN=Ottla CA,{ORGANIZATION}", now_ms)
    node_name, admin_name = f"CN={names[0]},{ORGANIZATION}", f"CN={admin},{ORGANIZATION}"
    node = authority.issue(node_name, now_ms, hosts=(*names, "localhost", "127.0.0.1", "::1"), days=days)
    files = {
        "ca.crt": authority.certificate_pem(),
        "ca.key": authority.key_pem(),
        "node.pem": node.key_pem() + node.chain_pem(),
    }
    layout = _Layout(path, data, names[0], port)  # the first name is the one that is advertised
    if passwords or users:
        secrets = {name: token_urlsafe(18) for name in dict.fromkeys((admin, *(users or ())))}
        files["server.properties"] = layout.server_with_scram(admin, secrets[admin])
        files |= {f"{name}.properties": layout.client_with_scram(name, it) for name, it in secrets.items()}
        files["client.properties"] = files[f"{admin}.properties"]
        principal = admin
    else:
        issued = authority.issue(admin_name, now_ms, days=days)
        files[f"{admin}.pem"] = issued.key_pem() + issued.chain_pem()
        files["server.properties"] = layout.server_with_certificates((admin, names[0]))
        files["client.properties"] = _client_with_certificate(path, path / f"{admin}.pem")
        secrets, principal = {}, admin
    if secrets:
        _check_unformatted(data)
    _write(path, files)
    if secrets:
        _format(data, secrets)
    if as_json:
        print_json(
            {
                "directory": str(path),
                "files": sorted(files),
                "data_directory": str(data),
                "admin": f"User:{principal}",
            }
        )
        return
    print_line(f"certificates and settings are in {path}; keep ca.key where it is safe")
    print_line(f"the node's data directory is {data}")
    print_line(f"ottla start {path / 'server.properties'}")
    print_line(f"ottla topics list -b {names[0]}:{port} --command-config {path / 'client.properties'}")


def _write(path: Path, files: dict[str, str]) -> None:
    from ottla.testing.security import write_secret

    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in files:
        if (path / file).exists():
            raise CliError(f"{path / file} exists already; choose another --dir")
    for file, text in files.items():
        write_secret(path / file, text)
    (path / "ca.crt").chmod(0o644)


def _check_unformatted(data: Path) -> None:
    """Refuse a directory with data before anything is written: `init` could not be repeated."""
    from ottla.log.directory.meta_properties import StorageError, read_meta_properties
    from ottla.runtime.disk import RealDisk

    try:
        formatted = read_meta_properties(RealDisk(), str(data)) is not None
    except StorageError as error:
        raise CliError(str(error)) from None
    if formatted:
        raise CliError(f"{data} is formatted already, without these users; choose another --data-dir")


def _format(data: Path, passwords: dict[str, str]) -> None:
    """Format the data directory with the first users."""
    from ottla.log.directory.meta_properties import StorageError
    from ottla.metadata.log.bootstrap_metadata import bootstrap_records, format_directory
    from ottla.protocol.names import uuid_text
    from ottla.runtime.clock import SystemClock
    from ottla.runtime.disk import RealDisk
    from ottla.runtime.random import SystemRandom
    from ottla.security.sasl.add_scram import scram_records

    random = SystemRandom()
    users = [f"{_MECHANISM}=[name={name},password={password}]" for name, password in passwords.items()]
    try:
        format_directory(
            RealDisk(),
            random,
            SystemClock(),
            str(data),
            cluster_id=uuid_text(random.uuid()),
            node_id=1,
            bootstrap=[*bootstrap_records(), *scram_records(users, random)],
        )
    except (StorageError, ValueError) as error:
        raise CliError(str(error)) from None


@command(app, "issue")
def issue(
    name: Annotated[
        str, Argument(help="The common name, as alice, or a whole name, as CN=alice,OU=Orders,O=Example.")
    ],
    directory: Directory = DEFAULT_DIRECTORY,
    hosts: Annotated[
        list[str] | None,
        Option("--host", metavar="HOST", help="A name or address of a node; may be repeated."),
    ] = None,
    out: Annotated[
        str | None, Option("--out", metavar="FILE", help="The file; NAME.pem in the directory by default.")
    ] = None,
    replace: Annotated[
        bool,
        Option(
            "--replace",
            help="Renew the certificate in the file, and keep its hosts: a running node takes the new one by "
            "itself.",
        ),
    ] = False,
    days: Days = 825,
    as_json: Json = False,
) -> None:
    """Issue a certificate for a further node or user, or renew one.

    The file has the key and the certificates, as ssl.keystore.location takes it with ssl.keystore.type=PEM. A
    user of a node that knows clients by their certificates also gets NAME.properties.
    """
    from ottla.security.tls.authority import CertificateAuthority
    from ottla.testing.security import write_secret

    path = Path(directory).absolute()
    try:
        authority = CertificateAuthority.load((path / "ca.key").read_bytes(), (path / "ca.crt").read_bytes())
    except FileNotFoundError:
        raise CliError(f"there is no CA in {path}; `ottla secure init --dir {directory}` makes one") from None
    except ValueError as error:
        raise CliError(f"{path / 'ca.key'}: {error}") from None
    subject = name if "=" in name else f"CN={name},{ORGANIZATION}"
    short = subject.partition("=")[2].partition(",")[0]
    file = Path(out) if out is not None else path / f"{short.replace('/', '_')}.pem"
    if file.exists() and not replace:
        raise CliError(f"{file} exists already; --replace renews it")
    # A node refuses a new certificate that lacks a host of the one in use.
    hosts = list(dict.fromkeys((*(hosts or ()), *_hosts_to_keep(file, subject))))
    try:
        issued = authority.issue(subject, int(time.time() * 1000), hosts=hosts, days=days)
    except ValueError as error:
        raise CliError(f"{name}: {error}") from None
    # Renamed into place: a node that looks at the file sees the old one or the new one.
    unfinished = file.with_name(f"{file.name}.tmp")
    write_secret(unfinished, issued.key_pem() + issued.chain_pem())
    unfinished.replace(file)
    principal = _principal(path, subject)
    settings = None
    if out is None and not hosts and _server_settings(path).get("ssl.client.auth") == "required":
        settings = _client_settings(path, file)
    if as_json:
        print_json(
            {
                "file": str(file),
                "client_properties": settings and str(settings),
                "subject": subject,
                "hosts": hosts,
                "principal": principal,
            }
        )
        return
    print_line(f"{file}: {subject}")
    if settings is not None:
        print_line(f"{settings}: for --command-config, and for any client of Kafka")
    if not hosts:
        print_line(f"ottla acls add --principal {quote(principal)} --consumer --topic TOPIC --group GROUP")


def _client_settings(path: Path, certificate: Path) -> Path | None:
    """Write the settings of a client that shows a certificate. A file that is there stays as it is: it may
    have been changed, or be the settings of something else.
    """
    from ottla.testing.security import write_secret

    file = certificate.with_suffix(".properties")
    if file.exists():
        return None
    write_secret(file, _client_with_certificate(path, certificate))
    return file


def _hosts_to_keep(file: Path, subject: str) -> tuple[str, ...]:
    """The hosts of the certificate in a file that is replaced. Raises CliError if it is that of another
    subject: the node or user whose file it is would be someone else.
    """
    from ottla.runtime.disk import RealDisk
    from ottla.security.tls.errors import TlsError
    from ottla.security.tls.expiry import describe
    from ottla.security.tls.material import load_trusted
    from ottla.security.tls.settings import StoreSettings

    if not file.exists():
        return ()
    try:
        found = load_trusted(RealDisk(), StoreSettings("truststore", location=str(file))) or []
    except TlsError:
        return ()  # nothing that a node could be using
    there = [describe(certificate) for certificate in found]
    for facts in there:
        if facts.subject == subject:
            return facts.hosts
    if there:
        raise CliError(
            f"{file} has a certificate of {there[0].subject}, not of {subject}; "
            f"`ottla secure issue {quote(there[0].subject)} --replace` renews that. For {subject} choose "
            "another file with --out, or delete this one first"
        )
    return ()


def _principal(path: Path, subject: str) -> str:
    """What a node with the settings in this directory makes of the subject of a certificate."""
    from ottla.security.tls.principal_mapper import PrincipalMapper

    rules = _server_settings(path).get("ssl.principal.mapping.rules", "DEFAULT")
    try:
        return f"User:{PrincipalMapper.parse(rules).name(subject)}"
    except ValueError:
        return f"User:{subject}"


def _server_settings(path: Path) -> dict[str, str]:
    """The settings of the node in this directory; none if they cannot be read."""
    from ottla.runtime.properties import parse_properties

    try:
        return dict(parse_properties((path / "server.properties").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@command(app, "show")
def show(
    files: Annotated[
        list[str], Argument(metavar="FILE...", help="PEM files, or key stores without password.")
    ],
    as_json: Json = False,
) -> None:
    """Show the certificates in files: whom they name, where they are valid, and when they end.

    Exits with 1 if one has ended.
    """
    from ottla.runtime.disk import RealDisk
    from ottla.security.tls.errors import TlsError
    from ottla.security.tls.expiry import describe
    from ottla.security.tls.material import load_trusted
    from ottla.security.tls.settings import StoreSettings

    now_ms = int(time.time() * 1000)
    rows = []
    for file in files:
        if not Path(file).exists():
            raise WrongUsage(f"{file}: there is no such file")
        try:
            found = load_trusted(RealDisk(), StoreSettings("truststore", location=file)) or []
        except TlsError as error:
            raise CliError(str(error).removeprefix("ssl.truststore.location: ")) from None
        for certificate in found:
            facts = describe(certificate)
            left_ms = facts.ends_ms - now_ms
            ended = left_ms <= 0
            days = -(-left_ms // _DAY_MS) if ended else left_ms // _DAY_MS
            rows.append((file, facts.subject, ", ".join(facts.hosts), facts.end_text, days, ended))
    if as_json:
        names = ("file", "subject", "hosts", "ends", "days_left", "ended")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(
            ["file", "subject", "hosts", "ends", "days left"],
            [(*row[:4], _ended_text(row[4]) if row[5] else row[4]) for row in rows],
        )
    if any(row[-1] for row in rows):
        raise click.exceptions.Exit(FAILED)


def _ended_text(days_left: int) -> str:
    return f"ended {-days_left} day{'s' * (days_left != -1)} ago" if days_left else "ended today"


class _Layout:
    """The settings of a node alone and of its clients, by the places of their files."""

    def __init__(self, path: Path, data: Path, host: str, port: int) -> None:
        self._path = path
        self._data = data
        self._host = host
        self._port = port

    def _server(self, protocol: str, of_clients: str, super_users: str) -> str:
        return f"""\
# A node alone, with TLS on its listener.
node.id=1
listeners={protocol}://{_LOOPBACK.get(self._host, "")}:{self._port}
advertised.listeners={protocol}://{self._host}:{self._port}
security.inter.broker.protocol={protocol}
log.dirs={self._data}

ssl.keystore.type=PEM
ssl.keystore.location={self._path / "node.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={self._path / "ca.crt"}
{of_clients}
# These may do everything, all others what ACLs allow.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users={super_users}
"""

    def server_with_certificates(self, super_users: tuple[str, ...]) -> str:
        asks = f"""\
# Clients show certificates that the CA has issued. CN=alice,{ORGANIZATION} is User:alice;
# other names stay as they are.
ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+),{ORGANIZATION}$/$1/,DEFAULT
"""
        return self._server("SSL", asks, ";".join(f"User:{name}" for name in super_users))

    def server_with_scram(self, admin: str, password: str) -> str:
        listener = f"listener.name.sasl_ssl.{_MECHANISM.lower()}.sasl.jaas.config"
        logins = f"""\
# Clients log in; users are in the cluster's metadata: `ottla users`.
sasl.enabled.mechanisms={_MECHANISM}
sasl.mechanism.inter.broker.protocol={_MECHANISM}
{listener}={_jaas(admin, password)}
"""
        return self._server("SASL_SSL", logins, f"User:{admin}")

    def client_with_scram(self, user: str, password: str) -> str:
        login = f"sasl.mechanism={_MECHANISM}\nsasl.jaas.config={_jaas(user, password)}\n"
        return f"security.protocol=SASL_SSL\n{login}{_trust(self._path)}"


def _client_with_certificate(path: Path, certificate: Path) -> str:
    own = f"ssl.keystore.type=PEM\nssl.keystore.location={certificate}\n"
    return f"security.protocol=SSL\n{own}{_trust(path)}"


def _trust(path: Path) -> str:
    return f"ssl.truststore.type=PEM\nssl.truststore.location={path / 'ca.crt'}\n"


def _jaas(user: str, password: str) -> str:
    return f'{_LOGIN_MODULE} required username="{user}" password="{password}";'
