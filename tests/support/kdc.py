"""A KDC on loopback, from the packages of the system: `krb5kdc`, `kdb5_util` and `kadmin.local`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ottla.testing.cluster_plan import free_ports
from tests.support.java import die_with_parent

REALM = "TEST.OTTLA"
KERBEROS_SKIP = "Kerberos is not tested: "
_TOOLS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_DEADLINE_SECONDS = 60
# Debian has the daemons where only root looks.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing_requirement() -> str | None:
    """What keeps tests with Kerberos from running on this machine, or None if nothing does."""
    for tool in _TOOLS:
        if shutil.which(tool, path=_PATH) is None:
            return f"no `{tool}` (Debian: apt install krb5-kdc krb5-admin-server krb5-user libkrb5-dev)"
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        return f"no package gssapi ({error}); pip install 'ottla[kerberos]'"
    return None


@dataclass(frozen=True, slots=True)
class Kdc:
    directory: Path
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """What programs need to find this KDC, and keep their traces in its directory."""
        return {
            "KRB5_CONFIG": str(self.directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
            "KRB5RCACHENAME": f"file2:{self.directory / 'replays'}",
            "KRB5CCNAME": f"FILE:{self.directory / 'tickets'}",
            "PATH": _PATH,
        }

    def run(self, *command: str, given: str = "") -> str:
        done = subprocess.run(
            command,
            input=given,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def key_tab(self, principal: str) -> str:
        """Make a principal with a key that no one knows, and a key tab that has it."""
        path = self.directory / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self.run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return str(path)


@contextlib.contextmanager
def running_kdc(directory: Path) -> Iterator[Kdc]:
    (port,) = free_ports(1)
    kdc = Kdc(directory, port)
    (directory / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
        " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
    (directory / "kdc.conf").write_text(
        f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
        f"  key_stash_file = {directory}/stash\n"
        f"  kdc_listen = 127.0.0.1:{port}\n  kdc_tcp_listen = 127.0.0.1:{port}\n }}\n"
        f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
    )
    kdc.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "the-master-key")
    with (directory / "kdc.out").open("wb") as out:
        process = subprocess.Popen(
            ["krb5kdc", "-n", "-r", REALM],
            env={**os.environ, **kdc.environment},
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(),
        )
    try:
        _wait_until_ready(kdc, process)
        yield kdc
    finally:
        process.terminate()
        process.wait(_DEADLINE_SECONDS)


def _wait_until_ready(kdc: Kdc, process: subprocess.Popen[bytes]) -> None:
    key_tab = kdc.key_tab("ready")
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            kdc.run("kinit", "-k", "-t", key_tab, "-c", f"FILE:{kdc.directory / 'ready'}", "ready")
            return
        except AssertionError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (kdc.directory / "kdc.out").read_text()
                raise AssertionError(f"the KDC does not answer: {error}\n{log}") from None
            time.sleep(0.1)
