"""`ottla secure`, and commands with `--command-config` against the node that it makes the settings of."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from ottla.node.config.errors import NodeFailed
from ottla.runtime.properties import parse_properties
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


def test_a_node_and_its_clients_are_secured_by_two_commands(offline: CommandLine, tmp_path: Path) -> None:
    directory = tmp_path / "security"
    made = offline.ok("secure", "init", "--dir", str(directory), "--host", "localhost", "--json").json
    assert made["admin"] == "User:admin"
    for name in ("ca.key", "node.pem", "admin.pem"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert "has a CA already" in offline("secure", "init", "--dir", str(directory)).err
    issued = offline.ok("secure", "issue", "bob", "--dir", str(directory)).out
    assert issued.endswith("ottla acls add --principal User:bob --consumer --topic TOPIC --group GROUP\n")
    bob = directory / "bob.properties"
    assert stat.S_IMODE(bob.stat().st_mode) == 0o600
    with bob.open("a") as settings_of_bob:
        settings_of_bob.write("acks=1\n")
    # Renewed, the certificate has the settings that it had; and no other file is taken for them.
    assert str(bob) not in offline.ok("secure", "issue", "bob", "--replace", "--dir", str(directory)).out
    assert bob.read_text().endswith("acks=1\n")
    offline.ok("secure", "issue", "server", "--dir", str(directory))

    settings = parse_properties((directory / "server.properties").read_text())
    assert settings["listeners"] == "SSL://127.0.0.1:9093"  # localhost is no name for other machines
    del settings["advertised.listeners"], settings["log.dirs"]
    with LocalNode({**settings, "listeners": "SSL://127.0.0.1:0"}) as node:
        servers = ("-b", f"localhost:{node.port}")
        admin = (*servers, "--command-config", str(directory / "client.properties"))
        offline.ok("topics", "create", "orders", *admin)
        offline.ok("produce", "orders", "one", *admin)
        assert offline.ok("consume", "orders", "--from", "beginning", "-n", "1", *admin).out.strip() == "one"
        denied = offline("produce", "orders", "two", *servers, "--command-config", str(bob)).err
        assert "TOPIC_AUTHORIZATION_FAILED" in denied
        assert "Missing ACL: User:CN=bob,O=Ottla (or what ssl.principal.mapping.rules make of it)" in denied
        offline.ok("acls", "add", "--principal", "bob", "--producer", "--topic", "orders", *admin)
        offline.ok("produce", "orders", "two", *servers, "--command-config", str(bob))
        disabled = offline("tokens", "create", *admin).err
        assert "Delegation tokens are not enabled. Set delegation.token.secret.key" in disabled
        # What is missing in the file of a client is named, with the setting.
        plain = offline("topics", "list", *servers).err
        assert "a TLS or SASL listener?" in plain
        assert "--command-config FILE: security.protocol=SSL" in plain
        lines = bob.read_text().splitlines()
        for missing in ("truststore", "keystore"):
            bob.write_text("\n".join(line for line in lines if f"ssl.{missing}" not in line))
            said = offline("topics", "list", *servers, "--command-config", str(bob))
            assert (said.status, f"\nSet ssl.{missing}.location in the file of" in said.err) == (3, True)


def test_certificates_are_shown_with_their_end(offline: CommandLine, tmp_path: Path) -> None:
    offline.ok("secure", "init", "--dir", str(tmp_path), "--host", "broker1.example", "--days", "10")
    shown = offline.ok("secure", "show", str(tmp_path / "node.pem"), "--json").json
    assert shown[0]["subject"] == "CN=broker1.example,O=Ottla"
    assert "broker1.example" in shown[0]["hosts"]
    assert (shown[0]["days_left"] in (9, 10), shown[0]["ended"]) == (True, False)
    eleven_days_ago = time.time() - 11.2 * 86_400
    with patch("ottla.cli.secure.time.time", lambda: eleven_days_ago):
        offline.ok(*("secure", "issue", "x", "--dir", str(tmp_path), "--days", "10"))
        offline.ok(*("secure", "issue", "n", "--dir", str(tmp_path), "--days", "10", "--host", "localhost"))
    ended = offline("secure", "show", str(tmp_path / "x.pem"))
    assert (ended.status, "ended 1 day ago" in ended.out) == (1, True)
    # A node that is started with it says which file that is, and how it is renewed.
    settings = parse_properties((tmp_path / "server.properties").read_text())
    del settings["log.dirs"]
    ended_on = r"The certificate of CN=n,O=Ottla in \S+n.pem ended on .* --replace"
    with pytest.raises(NodeFailed, match=ended_on):
        LocalNode({**settings, "ssl.keystore.location": str(tmp_path / "n.pem")}).start()


@pytest.mark.parametrize(
    "text", ["security.protocol=TLS", "ssl.truststore.location=/none\nsecurity.protocol=SSL"]
)
def test_a_wrong_file_is_reported_in_one_line(offline: CommandLine, tmp_path: Path, text: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    said = offline("topics", "list", "--command-config", str(file)).err
    assert "security.protocol" in said or "ssl.truststore.location: /none cannot be read" in said
    missing = offline("topics", "list", "--command-config", str(tmp_path / "none")).err
    assert "--command-config" in missing


def test_users_with_passwords_are_there_at_the_first_start(offline: CommandLine, tmp_path: Path) -> None:
    directory, data = tmp_path / "security", tmp_path / "data"
    places = ("--dir", str(directory), "--data-dir", str(data), "--host", "localhost")
    made = offline.ok("secure", "init", *places, "--user", "bob", "--json").json
    assert made["admin"] == "User:admin"
    # A certificate alone is no login here, so there are no settings that say so.
    issued = offline.ok("secure", "issue", "carol", "--dir", str(directory), "--json").json
    assert issued["client_properties"] is None
    assert not (directory / "carol.properties").exists()
    settings = parse_properties((directory / "server.properties").read_text())
    del settings["advertised.listeners"]
    with LocalNode({**settings, "listeners": "SASL_SSL://127.0.0.1:0"}) as node:
        servers = ("-b", f"localhost:{node.port}")
        admin = (*servers, "--command-config", str(directory / "client.properties"))
        offline.ok("topics", "create", "orders", *admin)
        bob = (*servers, "--command-config", str(directory / "bob.properties"))
        assert "TOPIC_AUTHORIZATION_FAILED" in offline("produce", "orders", "one", *bob).err
        offline.ok("acls", "add", "--principal", "User:bob", "--producer", "--topic", "orders", *admin)
        offline.ok("produce", "orders", "one", *bob)


def test_no_key_is_written_into_what_others_have_put_there(offline: CommandLine, tmp_path: Path) -> None:
    directory = tmp_path / "security"
    offline.ok("secure", "init", "--dir", str(directory))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    theirs, file = tmp_path / "theirs", directory / "bob.pem"
    theirs.touch(0o666)
    (directory / "bob.pem.tmp").symlink_to(theirs)
    offline.ok("secure", "issue", "bob", "--dir", str(directory))
    assert theirs.read_text() == ""
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_that_is_none_is_refused(offline: CommandLine, tmp_path: Path) -> None:
    offline.ok("secure", "init", "--dir", str(tmp_path), "--host", "localhost")
    refused = offline("secure", "issue", "CN=a, b", "--dir", str(tmp_path))
    assert refused.status == 1
    assert "it is no name such as CN=alice" in refused.err


def test_a_renewed_certificate_keeps_the_hosts_of_the_old_one(offline: CommandLine, tmp_path: Path) -> None:
    place, file = ("--dir", str(tmp_path)), str(tmp_path / "node.pem")
    offline.ok("secure", "init", *place, "--host", "broker1.example")
    before = offline.ok("secure", "show", file, "--json").json[0]
    renewed = ("issue", "broker1.example", "--host", "broker1.example", "--out", file, "--replace")
    offline.ok("secure", *renewed, "--days", "30", *place)  # the command of docs/security.md
    after = offline.ok("secure", "show", file, "--json").json[0]
    assert set(after["hosts"].split(", ")) == set(before["hosts"].split(", ")) > {"broker1.example"}
    assert after["days_left"] < before["days_left"]
    assert {"localhost", "127.0.0.1", "::1"} < set(after["hosts"].split(", "))
    # A certificate of another name is none that is renewed.
    refused = offline("secure", "issue", "bob", "--out", file, "--replace", *place)
    assert refused.status == 1
    assert "has a certificate of CN=broker1.example,O=Ottla, not of CN=bob,O=Ottla" in refused.err
    assert offline.ok("secure", "show", file, "--json").json[0] == after


def test_an_init_that_is_refused_leaves_nothing(offline: CommandLine, tmp_path: Path) -> None:
    directory, data = tmp_path / "security", tmp_path / "data"
    offline.ok("storage", "format", str(data))
    init = ("secure", "init", "--host", "localhost", "--user", "bob", "--dir", str(directory), "--data-dir")
    assert "choose another --data-dir" in offline(*init, str(data)).err
    directory.mkdir(exist_ok=True)
    (directory / "server.properties").touch()
    assert "exists already" in offline(*init, str(tmp_path / "other")).err
    (directory / "server.properties").unlink()
    offline.ok(*init, str(tmp_path / "other"))
