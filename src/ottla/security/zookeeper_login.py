"""How to log in at ZooKeeper, and by which TLS, from settings that begin with `zookeeper.`.

The names of TLS are those of Kafka before 4.0. There a login by SASL is in a JAAS file that Java is started
with; here `zookeeper.jaas.file` names it, or `zookeeper.login.scheme`, `.user` and `.password` have the
login itself.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ottla.runtime.disk import Disk, read_file
from ottla.runtime.zookeeper import ZooKeeperLogin
from ottla.security.jaas import JaasError, parse_jaas
from ottla.security.tls.context import TlsMaterial, client_context
from ottla.security.tls.errors import TlsError
from ottla.security.tls.settings import STORE_TYPES, StoreSettings, tls_settings

SCHEMES: Final = ("digest", "sasl-digest", "kerberos")
_PREFIX: Final = "zookeeper."
_UNSUPPORTED: Final = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")


class ZooKeeperSettingsError(ValueError):
    """Settings for ZooKeeper cannot be used; the message has no passwords."""


def load_login(given: Mapping[str, str], disk: Disk) -> ZooKeeperLogin | None:
    """Read the login, if there is one. It reads a file, so it blocks."""
    scheme, file = given.get("zookeeper.login.scheme"), given.get("zookeeper.jaas.file")
    if scheme and file:
        raise ZooKeeperSettingsError("zookeeper.login.scheme and zookeeper.jaas.file are set: give one login")
    if file:
        return _login_of_jaas(file, given.get("zookeeper.sasl.clientconfig", "Client"), disk)
    user, password = given.get("zookeeper.login.user", ""), given.get("zookeeper.login.password", "")
    if not scheme:
        if user or password:
            raise ZooKeeperSettingsError(
                f"zookeeper.login.user needs zookeeper.login.scheme: one of {', '.join(SCHEMES)}"
            )
        return None
    if scheme not in SCHEMES:
        raise ZooKeeperSettingsError(
            f"zookeeper.login.scheme {scheme}: allowed are {', '.join(SCHEMES[:-1])} and {SCHEMES[-1]}"
        )
    if scheme != "kerberos" and not (user and password):
        raise ZooKeeperSettingsError(
            f"zookeeper.login.scheme={scheme} needs zookeeper.login.user and zookeeper.login.password"
        )
    return ZooKeeperLogin(scheme, user, password)


def _login_of_jaas(file: str, section: str, disk: Disk) -> ZooKeeperLogin:
    try:
        text = read_file(disk, file).decode()
    except OSError as error:
        raise ZooKeeperSettingsError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ZooKeeperSettingsError(f"{file} is not text in UTF-8") from None
    found = re.search(rf"(?:^|[\s;}}]){re.escape(section)}\s*\{{(.*?)\}}\s*;?", text, re.DOTALL)
    if found is None:
        raise ZooKeeperSettingsError(f"{file} has no section {section}, which is for ZooKeeper")
    try:
        entry = parse_jaas(found[1])
    except JaasError as error:
        raise ZooKeeperSettingsError(f"{file}: {error}") from None
    if entry.login_module.endswith("Krb5LoginModule"):
        return ZooKeeperLogin("kerberos", entry.options.get("principal", ""))
    return ZooKeeperLogin("sasl-digest", entry.options.get("username", ""), entry.options.get("password", ""))


def load_tls(given: Mapping[str, str], disk: Disk) -> ssl.SSLContext | None:
    """Make the context of connections by TLS; None without `zookeeper.ssl.client.enable`. It reads key and
    trust stores in PEM, JKS or PKCS12, so it blocks.
    """
    if given.get("zookeeper.ssl.client.enable", "false").strip().lower() != "true":
        return None
    for name in _UNSUPPORTED:
        if given.get(name, "false").strip().lower() == "true":
            raise ZooKeeperSettingsError(
                f"{name}=true is not supported: revoked certificates are not looked up"
            )
    socket = given.get("zookeeper.clientCnxnSocket", "")
    if socket.endswith("ClientCnxnSocketNIO"):
        raise ZooKeeperSettingsError(
            f"zookeeper.clientCnxnSocket={socket} has no TLS, and zookeeper.ssl.client.enable is true: use "
            "org.apache.zookeeper.ClientCnxnSocketNetty"
        )
    # ZooKeeper has one password for a store and its key; the general settings of TLS have two.
    values: dict[str, object] = {"ssl.endpoint.identification.algorithm": "https"}
    for name in (
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
    ):
        value = given.get(_PREFIX + name)
        if value is not None:
            values[name] = value.strip()
    try:
        settings = replace(
            tls_settings(values.get, is_set=values.__contains__),
            keystore=_store("keystore", given),
            truststore=_store("truststore", given),
        )
        return client_context(settings, TlsMaterial.load(disk, settings))
    except TlsError as error:
        raise ZooKeeperSettingsError(f"TLS of ZooKeeper (zookeeper.ssl.*): {error}") from None


def _store(name: str, given: Mapping[str, str]) -> StoreSettings:
    prefix = f"{_PREFIX}ssl.{name}"
    type = given.get(f"{prefix}.type", "").upper()
    if type and type not in STORE_TYPES:
        raise TlsError(f"ssl.{name}.type: {type} is not supported; use one of {', '.join(STORE_TYPES)}")
    password = given.get(f"{prefix}.password")
    return StoreSettings(
        name,
        type,
        given.get(f"{prefix}.location"),
        password,
        key_password=password if name == "keystore" else None,
    )
