"""The first users of a cluster, given as `kafka-storage format` takes them."""

from __future__ import annotations

import base64

import pytest

from ottla.protocol import scram
from ottla.protocol.metadata_records import UserScramCredentialRecord
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import SeededRandom
from ottla.security.sasl.add_scram import scram_records

SHA_256 = ScramMechanism.SCRAM_SHA_256


def only(argument: str) -> UserScramCredentialRecord:
    (record,) = scram_records([argument], SeededRandom(1))
    assert isinstance(record, UserScramCredentialRecord)
    return record


def test_password() -> None:
    record = only("SCRAM-SHA-256=[name=alice,password=alice-secret]")
    assert (record.name, record.mechanism, record.iterations) == ("alice", SHA_256, 4096)
    salted = scram.salted_password(SHA_256, "alice-secret", record.salt, 4096)
    assert record.stored_key == scram.stored_key(SHA_256, scram.client_key(SHA_256, salted))
    assert record.server_key == scram.server_key(SHA_256, salted)


def test_salted_password() -> None:
    salt = base64.b64encode(b"salt").decode()
    salted = scram.salted_password(ScramMechanism.SCRAM_SHA_512, "x", b"salt", 8192)
    text = base64.b64encode(salted).decode()
    argument = f'SCRAM-SHA-512=[name="bob",iterations=8192,salt="{salt}",saltedpassword="{text}"]'
    record = only(argument)
    assert (record.name, record.salt, record.iterations) == ("bob", b"salt", 8192)
    assert record.server_key == scram.server_key(ScramMechanism.SCRAM_SHA_512, salted)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("SCRAM-SHA-256", "Failed to find equals sign"),
        ("SCRAM-SHA-1=[name=a,password=pw]", "mechanism SCRAM-SHA-1 is not supported"),
        ("SCRAM-SHA-256=name=a,password=pw]", r"start with \["),
        ("SCRAM-SHA-256=[name=a,password=pw", r"end with \]"),
        ("SCRAM-SHA-256=[password=pw]", "You must supply 'name'"),
        ("SCRAM-SHA-256=[name=a]", "one of 'password' or 'saltedpassword'"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=cHc=]", "supply 'salt' with 'saltedpassword'"),
        ("SCRAM-SHA-256=[name=a,password=pw,iterations=4095]", "must be >= 4096"),
        ("SCRAM-SHA-256=[name=a,password=pw,iterations=16385]", "must be <= 16384"),
        ("SCRAM-SHA-256=[name=a,password=pw,iterations=x]", "Failed to parse iterations"),
        ("SCRAM-SHA-256=[name=a,password=pw,colour=red]", "Unknown SCRAM configurations: colour"),
        ("SCRAM-SHA-256=[name=a,password=pw,salt=*]", "Failed to decode given salt"),
        ("SCRAM-SHA-256=[name=a,pw]", "No equals sign found"),
    ],
)
def test_what_is_wrong_is_named_without_the_password(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        scram_records([argument], SeededRandom(1))
    assert "pw" not in str(caught.value)
