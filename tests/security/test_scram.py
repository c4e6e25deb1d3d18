"""SCRAM between our client and our server, and what neither of them accepts of a forged other side."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.image.entities import ScramCredential
from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import SeededRandom
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure
from ottla.security.sasl.scram_client import ScramClient, ScramClientFactory
from ottla.security.sasl.scram_server import ScramServer, ScramServerFactory, TokenCredential
from ottla.security.secret import Secret

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
RANDOM = SeededRandom("scram")


def credential(
    mechanism: ScramMechanism, password: str, salt: bytes = b"0123456789abcdefghijk", iterations: int = 4096
) -> ScramCredential:
    salted = scram.salted_password(mechanism, password, salt, iterations)
    stored = scram.stored_key(mechanism, scram.client_key(mechanism, salted))
    return ScramCredential(salt, stored, scram.server_key(mechanism, salted), iterations)


class Users:
    """Credentials of a test."""

    def __init__(self, users: dict[str, ScramCredential]) -> None:
        self.users = users
        self.tokens: dict[str, TokenCredential] = {}

    def of_user(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        return self.users.get(name)

    def of_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        return self.tokens.get(token_id)

    def example(self, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.users[min(self.users)] if self.users else None


ALICE = Users({"alice": credential(SHA_256, "secret")})


def client(user: str = "alice", password: str = "secret", mechanism: ScramMechanism = SHA_256) -> ScramClient:
    factory = ScramClientFactory(mechanism, user, Secret(password), RANDOM)
    return asyncio.run(factory.create("a-host"))


def server(users: Users = ALICE, mechanism: ScramMechanism = SHA_256) -> ScramServer:
    return ScramServerFactory(mechanism, users, RANDOM).create()


def converse(one: ScramClient, other: ScramServer) -> AuthenticatedClient | None:
    first = other.evaluate_response(one.initial_response())
    assert first.client is None
    final = one.evaluate_challenge(first.token)
    assert final is not None
    last = other.evaluate_response(final)
    assert one.evaluate_challenge(last.token) is None
    return last.client


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize(("name", "password"), [("alice", "secret"), ("a=b,c", "p=,"), ("jörg", "grüße €")])
def test_known_user_gets_in(mechanism: ScramMechanism, name: str, password: str) -> None:
    users = Users({name: credential(mechanism, password)})
    assert converse(client(name, password, mechanism), server(users, mechanism)) == AuthenticatedClient(
        KafkaPrincipal("User", name)
    )


def test_the_formulas_are_those_of_the_standard() -> None:
    """The example of RFC 7677."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = scram.salted_password(SHA_256, "pencil", salt, 4096)
    auth_message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    key = scram.client_key(SHA_256, salted)
    proof = scram.exclusive_or(key, scram.signature(SHA_256, scram.stored_key(SHA_256, key), auth_message))
    assert base64.b64encode(proof) == b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    signature = scram.signature(SHA_256, scram.server_key(SHA_256, salted), auth_message)
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("carol", "secret"), ("carol", "x")])
def test_unknown_user_fails_where_a_wrong_password_fails(user: str, password: str) -> None:
    one, other = client(user, password), server()
    first = other.evaluate_response(one.initial_response())
    final = one.evaluate_challenge(first.token)
    assert final is not None
    with pytest.raises(SaslFailure, match="Invalid client credentials") as caught:
        other.evaluate_response(final)
    assert caught.value.client_message is None


def test_made_up_salts_look_like_others_and_stay() -> None:
    def first_answer(factory: ScramServerFactory, user: str) -> re.Match[str]:
        answer = factory.create().evaluate_response(client(user).initial_response()).token.decode()
        match = re.fullmatch(r"r=[^,]+,s=([^,]+),i=(\d+)", answer)
        assert match is not None
        return match

    users = Users({"alice": credential(SHA_256, "secret", iterations=8192)})
    here, there = ScramServerFactory(SHA_256, users, RANDOM), ScramServerFactory(SHA_256, users, RANDOM)
    carol = first_answer(here, "carol")
    assert carol.groups() == first_answer(there, "carol").groups()
    assert carol[1] != first_answer(here, "dave")[1]
    known = first_answer(here, "alice")
    assert carol[2] == known[2]
    salt = base64.b64decode(carol[1])
    assert len(salt) == len(base64.b64decode(known[1]))
    assert re.fullmatch(rb"[0-9a-z]+", salt)


def test_a_recorded_login_is_of_no_use() -> None:
    one, other = client(), server()
    first = one.initial_response()
    final = one.evaluate_challenge(other.evaluate_response(first).token)
    assert final is not None
    assert other.evaluate_response(final).client is not None
    again = server()
    again.evaluate_response(first)
    with pytest.raises(SaslFailure, match="nonce"):
        again.evaluate_response(final)


def test_the_last_nonce_must_be_that_of_the_exchange() -> None:
    """It is not enough that it ends, or begins, with it."""
    for change in (lambda n: b"x" + n, lambda n: n + b"x", lambda n: n[:-1]):
        one, other = client(), server()
        final = one.evaluate_challenge(other.evaluate_response(one.initial_response()).token)
        assert final is not None
        binding, nonce, proof = final.split(b",", 2)
        forged = b",".join((binding, b"r=" + change(nonce[2:]), proof))
        with pytest.raises(SaslFailure, match="nonce"):
            other.evaluate_response(forged)


@pytest.mark.parametrize("binding", [b"c=eSws", b"c=cD10bHMtdW5pcXVlLCw=", b"c="])
def test_channel_binding_must_be_what_was_announced(binding: bytes) -> None:
    one, other = client(), server()
    final = one.evaluate_challenge(other.evaluate_response(one.initial_response()).token)
    assert final is not None
    with pytest.raises(SaslFailure, match="channel binding"):
        other.evaluate_response(final.replace(b"c=biws", binding))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=a bc",
        b"n,,n=alice,r=abc,",
        b"n,,n=alice\0,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,r=abc,n=alice",
        b"\0alice\0secret",
    ],
)
def test_what_is_no_first_message(first: bytes) -> None:
    with pytest.raises(SaslFailure):
        server().evaluate_response(first)


@pytest.mark.parametrize("name", [b"a" * 500_000, b"=2C" * 3_000])
def test_a_first_message_is_short(name: bytes) -> None:
    with pytest.raises(SaslFailure, match="Invalid SCRAM client first message format"):
        server().evaluate_response(b"n,,n=" + name + b",r=abc")


def test_a_name_may_have_thousands_of_characters() -> None:
    name = "n," * 1_500
    assert converse(client(name), server(Users({name: credential(SHA_256, "secret")}))) is not None


def test_authorization_id_is_the_user() -> None:
    bare = client().initial_response().removeprefix(b"n,,")
    for user in (b"alice", b"carol"):
        with pytest.raises(SaslFailure, match="authorization id"):
            server().evaluate_response(b"n,a=admin," + bare.replace(b"alice", user))
    server().evaluate_response(b"n,a=alice," + bare)


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_get_in(token: bytes, begun: bool) -> None:
    other = server()
    if begun:
        other.evaluate_response(client().initial_response())
    with contextlib.suppress(SaslFailure):
        assert other.evaluate_response(token).client is None


def answer_of(one: ScramClient, **changes: str) -> bytes:
    nonce = one.initial_response().decode().rpartition("r=")[2]
    parts = {"r": nonce + "server", "s": "c2FsdA==", "i": "4096"} | changes
    return ",".join(f"{name}={value}" for name, value in parts.items()).encode()


@pytest.mark.parametrize("iterations", ["1", "4095", "0", "1000001", "2147483647"])
def test_client_does_not_go_below_or_far_above_the_usual_iterations(iterations: str) -> None:
    one = client()
    with pytest.raises(SaslFailure, match=f"asks for {iterations} iterations"):
        one.evaluate_challenge(answer_of(one, i=iterations))


def test_client_wants_its_nonce_back() -> None:
    one = client()
    with pytest.raises(SaslFailure, match="nonce"):
        one.evaluate_challenge(answer_of(one, r="another"))
    nonce = one.initial_response().decode().rpartition("r=")[2]
    with pytest.raises(SaslFailure, match="nonce"):
        one.evaluate_challenge(answer_of(one, r=nonce))


def test_client_knows_a_server_that_does_not_have_the_password() -> None:
    one, forger = client(), server(Users({"alice": credential(SHA_256, "another")}))
    one.evaluate_challenge(forger.evaluate_response(one.initial_response()).token)
    with pytest.raises(SaslFailure, match="signature is wrong"):
        one.evaluate_challenge(b"v=" + base64.b64encode(bytes(32)))
    one = client()
    one.evaluate_challenge(answer_of(one))
    with pytest.raises(SaslFailure, match="invalid-proof"):
        one.evaluate_challenge(b"e=invalid-proof")


def test_a_token_logs_its_owner_in() -> None:
    users = Users({})
    owner = KafkaPrincipal("User", "alice")
    users.tokens["token-1"] = TokenCredential(credential(SHA_512, "hmac"), owner, 5_000)
    for token_id, found in (("token-1", True), ("token-2", False)):
        factory = ScramClientFactory(SHA_512, token_id, Secret("hmac"), RANDOM, {"tokenauth": "true"})
        one, other = asyncio.run(factory.create("a-host")), server(users, SHA_512)
        if found:
            done = converse(one, other)
            assert done == AuthenticatedClient(owner, 5_000)
            assert done.principal.token_authenticated
        else:
            with pytest.raises(SaslFailure):
                converse(one, other)
    with pytest.raises(SaslFailure):
        converse(client("token-1", "hmac", SHA_512), server(users, SHA_512))


def test_the_password_is_nowhere_to_be_seen() -> None:
    factory = ScramClientFactory(SHA_256, "alice", Secret("hunter2"), RANDOM)
    assert "hunter2" not in f"{factory!r}{vars(factory)!r}{Secret('hunter2')}"
