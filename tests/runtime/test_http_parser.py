"""What is a request of HTTP/1.1 and what is not: each text has one meaning, or none."""

from __future__ import annotations

import pytest

from ottla.runtime.http_parser import (
    MAX_HEAD_BYTES,
    ChunkedBody,
    HttpProblem,
    SizedBody,
    body_of,
    find_head_end,
    parse_head,
)
from tests.support.rows import for_each

HOST = b"Host: localhost\r\n"


def head_of(text: bytes) -> bytes:
    """The head of a request, as the server cuts it out of what it received."""
    received = bytearray(text)
    end = find_head_end(received, 0)
    assert end >= 0, text
    return bytes(received[:end])


def refusal(text: bytes) -> int:
    """The status with which a request is refused."""
    with pytest.raises(HttpProblem) as refused:
        body_of(parse_head(head_of(text + b"\r\n")))
    return refused.value.status


def test_a_request_has_a_method_a_path_a_query_and_headers() -> None:
    head = parse_head(head_of(b"GET /a%20b?x=1&y HTTP/1.1\r\nHoSt: LocalHost:9644\r\nX-Two:  a, b \r\n\r\n"))
    assert (head.method, head.path, head.query, head.host) == ("GET", "/a%20b", "x=1&y", "localhost")
    assert head.headers.get("x-two") == "a, b"
    assert head.headers.has_token("x-two", "b")
    assert head.headers.get("x-three") is None
    assert head.keeps_alive


@pytest.mark.parametrize(
    ("request_text", "host", "path"),
    [
        (b"GET http://Other.example:80/p?q HTTP/1.1\r\n" + HOST, "other.example", "/p"),
        (b"GET http://other HTTP/1.1\r\n" + HOST, "other", "/"),
        (b"GET / HTTP/1.1\r\nHost: [::1]:9644\r\n", "::1", "/"),
        (b"GET / HTTP/1.0\r\n", "", "/"),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, "localhost", "*"),
    ],
)
def test_the_host_is_the_one_that_the_client_asked_for(request_text: bytes, host: str, path: str) -> None:
    head = parse_head(head_of(request_text + b"\r\n"))
    assert (head.host, head.path) == (host, path)


def test_a_client_that_closes_or_is_old_keeps_no_connection() -> None:
    assert not parse_head(head_of(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: x, Close\r\n\r\n")).keeps_alive
    assert not parse_head(head_of(b"GET / HTTP/1.0\r\n\r\n")).keeps_alive


@for_each(
    ("text", "status"),
    [
        # Request lines.
        (b"GET /\r\n" + HOST, 400),
        (b"GET  / HTTP/1.1\r\n" + HOST, 400),
        (b"GET / HTTP/1.1 \r\n" + HOST, 400),
        (b"G\xe9T / HTTP/1.1\r\n" + HOST, 400),
        (b"GET /\x00 HTTP/1.1\r\n" + HOST, 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST, 400),
        (b"GET nothing HTTP/1.1\r\n" + HOST, 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST, 400),
        (b"GET / http/1.1\r\n" + HOST, 400),
        (b"GET / HTTP/1.11\r\n" + HOST, 400),
        (b"PRI * HTTP/2.0\r\n", 505),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + HOST, 414),
        # Headers.
        (b"GET / HTTP/1.1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST, 400),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X : 1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X\t: 1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\r\n folded\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b": 1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n", 400),
        (b"GET / HTTP/1.1\n" + HOST, 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\nY: 2\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\r\n" * 100, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 9_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + (b"X: " + b"a" * 8_000 + b"\r\n") * 5, 431),
        # Where a body ends.
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5, 5\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x5\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: \r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5_0\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 19 + b"\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, identity\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: \x0bchunked\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 501),
    ],
)
def test_what_has_no_single_meaning_is_refused(text: bytes, status: int) -> None:
    assert refusal(text) == status


def test_a_head_that_never_ends_is_refused_while_it_arrives() -> None:
    received = bytearray(b"GET / HTTP/1.1\r\n" + HOST)
    looked_at = 0
    while len(received) <= MAX_HEAD_BYTES:
        assert find_head_end(received, looked_at) < 0
        looked_at = len(received)
        received += b"X: aaaaaaaaaaaaaaa\r\n"
    with pytest.raises(HttpProblem) as refused:
        find_head_end(received, looked_at)
    assert refused.value.status == 431
    assert len(received) < MAX_HEAD_BYTES + 100


@for_each(("protocol", "first"), [("Kafka", b"\0\0\0\x1f\0\x12\0\x04"), ("TLS", b"\x16\x03\x01\x02\0\x01")])
def test_another_protocol_is_refused_with_its_first_byte(protocol: str, first: bytes) -> None:
    """Its client would wait for an answer to a request that has no end here."""
    with pytest.raises(HttpProblem) as refused:
        find_head_end(bytearray(first), 0)
    assert refused.value.status == 400, protocol


def test_the_end_of_a_head_is_found_wherever_it_is_cut() -> None:
    text = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    for cut in range(1, len(text)):
        received = bytearray(text[:cut])
        assert find_head_end(received, 0) < 0
        received += text[cut:]
        assert find_head_end(received, cut) == len(text) - 4


def read(body: SizedBody | ChunkedBody, *pieces: bytes) -> tuple[bytes, bytes]:
    """What a body gives for pieces that arrive one after the other, and what is left behind it."""
    received, given = bytearray(), b""
    for piece in pieces:
        received += piece
        while part := body.take(received):
            given += part
    return given, bytes(received)


def test_a_body_of_known_size_ends_after_it() -> None:
    body = SizedBody(5)
    assert read(body, b"hel", b"loGET /") == (b"hello", b"GET /")
    assert body.is_done
    assert SizedBody(0).is_done


CHUNKED = b"5;name=value\r\nhello\r\n00A \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"


def test_chunks_are_joined_wherever_they_are_cut() -> None:
    for cut in range(len(CHUNKED)):
        body = ChunkedBody()
        assert read(body, CHUNKED[:cut], CHUNKED[cut:] + b"NEXT") == (b"hello0123456789", b"NEXT")
        assert body.is_done
    body = ChunkedBody()
    assert read(body, *(bytes([byte]) for byte in CHUNKED)) == (b"hello0123456789", b"")
    assert body.is_done


@for_each(
    "text",
    [
        *(b"g\r\n", b"\r\n", b"-1\r\n", b"+1\r\na\r\n", b"0x1\r\na\r\n", b" 1\r\na\r\n", b"1 1\r\na\r\n"),
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n0\r\n\r\n",
        b"f" * 16 + b"\r\n",
        b"1;" + b"x" * 300,
        b"1;\x00\r\na\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nX : 1\r\n\r\n",
        b"0\r\n" + (b"X: " + b"a" * 4_000 + b"\r\n") * 3,
    ],
)
def test_bad_chunks_are_refused(text: bytes) -> None:
    with pytest.raises(HttpProblem):
        read(ChunkedBody(), text)
