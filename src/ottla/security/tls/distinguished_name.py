"""The subject of a certificate as text, as Java's `X500Principal.getName` writes it by RFC 2253.

ACLs and `super.users` name the owners of certificates by this text, so it has to be the same to the letter:
the last name comes first, `=` and `#` are escaped too, and an attribute that RFC 2253 has no short name for
is written by its number and the bytes of its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = ',=+<>#;"\\'
_VERSION_TAG: Final = 0xA0
# Character sets of strings, by their tags: UTF8, Printable, T61, IA5, General, Universal, BMP.
_STRINGS: Final = {
    0x0C: "utf-8",
    0x13: "utf-8",
    0x14: "latin-1",
    0x16: "utf-8",
    0x1B: "utf-8",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER. ValueError if it is none.

    It was verified by OpenSSL before, so what it has is well-formed.
    """
    try:
        whole = _content(certificate, 0)
        signed = list(_values(_content(whole, 0)))
        if signed[0][0] == _VERSION_TAG:
            del signed[0]
        # serial number, algorithm, issuer, validity, subject
        return rfc2253_name(signed[4][1])
    except (IndexError, UnicodeDecodeError):
        raise ValueError("the subject of the certificate cannot be read") from None


def rfc2253_name(rdn_sequence: bytes) -> str:
    """A name as text, of the content of its DER."""
    names = [content for _, content in _values(rdn_sequence)]
    return ",".join(_relative_name(content) for content in reversed(names))


def _relative_name(content: bytes) -> str:
    texts = []
    for _, attribute in _values(content):
        (_, number), (tag, value) = list(_values(attribute))[:2]
        oid = _oid(number)
        keyword = _KEYWORDS.get(oid)
        if keyword is None or tag not in _STRINGS:
            texts.append(f"{keyword or oid}=#{_der(tag, value).hex()}")
        else:
            texts.append(f"{keyword}={_escaped(value.decode(_STRINGS[tag]))}")
    return "+".join(texts)


def _escaped(text: str) -> str:
    inner = text.strip(" \r")
    begin = len(text) - len(text.lstrip(" \r"))
    lead, trail = (text[:begin], text[begin + len(inner) :]) if inner else (text, "")
    escaped = "".join(f"\\{char}" if char in _ESCAPED else char for char in inner).replace("\0", "\\00")
    return "".join(f"\\{char}" for char in lead) + escaped + "".join(f"\\{char}" for char in trail)


def _oid(data: bytes) -> str:
    parts = [min(data[0] // 40, 2)]
    parts.append(data[0] - 40 * parts[0])
    number = 0
    for byte in data[1:]:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            parts.append(number)
            number = 0
    return ".".join(map(str, parts))


# DER


def _header(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the value at an offset begins and ends."""
    size = data[at + 1]
    begin = at + 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[begin : begin + count], "big")
        begin += count
    if begin + size > len(data):
        raise IndexError(at)
    return begin, begin + size


def _content(data: bytes, at: int) -> bytes:
    begin, end = _header(data, at)
    return data[begin:end]


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The values that follow each other: their tags and contents."""
    at = 0
    while at < len(data):
        begin, end = _header(data, at)
        yield data[at], data[begin:end]
        at = end


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
