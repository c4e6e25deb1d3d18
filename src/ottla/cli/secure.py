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
from typing import Annotated, Final

from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import CliError
from ottla.cli.options import Json
from ottla.cli.output import print_json, print_table

DEFAULT_DIRECTORY: Final = "./ottla-security"
DEFAULT_PORT: Final = 9093
ORGANIZATION: Final = "O=Ottla"
_DAY_MS: Final = 86_400_000

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
    port: Annotated[
        int, Option("--port", min=1, max=65_535, help="The port of the listener.")
    ] = DEFAULT_PORT,
    data_dir: Annotated[
        str, Option("--data-dir", metavar="DIR", help="The data directory of the node.")
    ] = "./ottla-data",
    days: Days = 825,
    as_json: Json = False,
) -> None:
    """Make a CA, certificates of a node and of an admin, server.properties and client.properties.

    The node encrypts its connections, knows clients by their certificates, and lets only the admin in until
    ACLs say otherwise. `ottla start DIR/server.properties` starts it.
    """
    import socket

    from ottla.security.tls.authority import CertificateAuthority
    from ottla.testing.security import write_secret

    path = Path(directory).absolute()
    if (path / "ca.key").exists():
        raise CliError(f"{path} has a CA already; `ottla secure issue` makes further certificates with it")
    path.mkdir(parents=True, exist_ok=True)
    now_ms = int(time.time() * 1000)
    names = hosts or [socket.gethostname()]
    authority = CertificateAuthority.create(f"CN=Ottla CA,{ORGANIZATION}", now_ms)
    files = {
        "ca.crt": authority.certificate_pem(),
        "ca.key": authority.key_pem(),
    }
    node_name, admin_name = f"CN={names[0]},{ORGANIZATION}", f"CN={admin},{ORGANIZATION}"
    local = ("localhost", "127.0.0.1", "::1")
    for file, name, reached_at in (
        ("node.pem", node_name, (*names, *local)),
        (f"{admin}.pem", admin_name, ()),
    ):
        issued = authority.issue(name, now_ms, hosts=reached_at, days=days)
        files[file] = issued.key_pem() + issued.chain_pem()
    data = Path(data_dir).absolute()
    files["server.properties"] = _server_properties(path, data, names[0], port, (admin_name, node_name))
    files["client.properties"] = _client_properties(path, admin)
    for file, text in files.items():
        if (path / file).exists():
            raise CliError(f"{path / file} exists already; choose another --dir")
        write_secret(path / file, text)
    (path / "ca.crt").chmod(0o644)
    if as_json:
        print_json({"directory": str(path), "files": sorted(files), "admin": f"User:{admin_name}"})
        return
    print(f"certificates and settings are in {path}; keep ca.key where it is safe")
    print(f"ottla start {path / 'server.properties'}")
    print(f"ottla topics list -b {names[0]}:{port} --command-config {path / 'client.properties'}")


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
        bool, Option("--replace", help="Replace the file: a running node takes the new one by itself.")
    ] = False,
    days: Days = 825,
    as_json: Json = False,
) -> None:
    """Issue a certificate for a further node or user, or renew one.

    The file has the key and the certificates, as ssl.keystore.location takes it with ssl.keystore.type=PEM.
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
    try:
        issued = authority.issue(subject, int(time.time() * 1000), hosts=hosts or (), days=days)
    except ValueError as error:
        raise CliError(f"{name}: {error}") from None
    # Renamed into place: a node that looks at the file sees the old one or the new one.
    unfinished = file.with_name(f"{file.name}.tmp")
    write_secret(unfinished, issued.key_pem() + issued.chain_pem())
    unfinished.replace(file)
    if as_json:
        print_json({"file": str(file), "subject": subject, "hosts": hosts or []})
    else:
        print(f"{file}: {subject}")


@command(app, "show")
def show(
    files: Annotated[
        list[str], Argument(metavar="FILE...", help="PEM files, or key stores without password.")
    ],
    as_json: Json = False,
) -> None:
    """Show the certificates in files: whom they name, where they are valid, and when they end."""
    from ottla.runtime.disk import RealDisk
    from ottla.security.tls.errors import TlsError
    from ottla.security.tls.expiry import describe
    from ottla.security.tls.material import load_trusted
    from ottla.security.tls.settings import StoreSettings

    now_ms = int(time.time() * 1000)
    rows = []
    for file in files:
        try:
            found = load_trusted(RealDisk(), StoreSettings("truststore", location=file)) or []
        except TlsError as error:
            raise CliError(str(error).removeprefix("ssl.truststore.location: ")) from None
        for certificate in found:
            facts = describe(certificate)
            days_left = (facts.ends_ms - now_ms) // _DAY_MS
            rows.append((file, facts.subject, ", ".join(facts.hosts), facts.end_text, days_left))
    names = ("file", "subject", "hosts", "ends", "days_left")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table([name.replace("_", " ").upper() for name in names], [list(map(str, row)) for row in rows])


def _server_properties(path: Path, data: Path, host: str, port: int, super_users: tuple[str, ...]) -> str:
    users = ";".join(f"User:{name}" for name in super_users)
    return f"""\
# A node alone, with TLS on its listener. Clients show certificates that the CA has issued.
listeners=SSL://:{port}
advertised.listeners=SSL://{host}:{port}
security.inter.broker.protocol=SSL
log.dirs={data}

ssl.keystore.type=PEM
ssl.keystore.location={path / "node.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={path / "ca.crt"}
ssl.client.auth=required

# These may do everything, all others what ACLs allow.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users={users}
"""


def _client_properties(path: Path, admin: str) -> str:
    return f"""\
security.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location={path / f"{admin}.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={path / "ca.crt"}
"""
