"""Names of the owners of certificates, as Java's `X500Principal.getName` writes them, and the rules that make
users of them. The expected texts were printed by Java 17.
"""

from __future__ import annotations

import pytest
from cryptography.x509 import Name, NameAttribute, RelativeDistinguishedName
from cryptography.x509.oid import NameOID

from ottla.security.tls.distinguished_name import rfc2253_name, subject_name
from ottla.security.tls.errors import TlsError
from ottla.security.tls.principal_mapper import PrincipalMapper
from tests.support import certificates

CASES = [
    (
        [
            (NameOID.COUNTRY_NAME, "DE"),
            (NameOID.ORGANIZATION_NAME, "Example, Inc."),
            (NameOID.COMMON_NAME, "alice"),
        ],
        "CN=alice,O=Example\\, Inc.,C=DE",
    ),
    (
        [
            (NameOID.COMMON_NAME, ' #lead=x+y<z>;"q"\\ '),
            (NameOID.EMAIL_ADDRESS, "a@b.c"),
            (NameOID.STREET_ADDRESS, "x"),
        ],
        'STREET=x,1.2.840.113549.1.9.1=#16056140622e63,CN=\\ \\#lead\\=x\\+y\\<z\\>\\;\\"q\\"\\\\\\ ',
    ),
    (
        [(NameOID.COMMON_NAME, "Zoë 日本"), (NameOID.SERIAL_NUMBER, "123"), (NameOID.TITLE, "Dr")],
        "2.5.4.12=#0c024472,2.5.4.5=#1303313233,CN=Zoë 日本",
    ),
    ([(NameOID.STATE_OR_PROVINCE_NAME, "  "), (NameOID.LOCALITY_NAME, "a  b")], "L=a  b,ST=\\ \\ "),
]


def content(name: Name) -> bytes:
    """The content of a name's DER, without its tag and length."""
    data = name.public_bytes()
    return data[2:] if data[1] < 0x80 else data[2 + (data[1] & 0x7F) :]


@pytest.mark.parametrize(("attributes", "text"), CASES)
def test_a_name_is_written_as_java_writes_it(attributes: list[tuple[object, str]], text: str) -> None:
    name = Name([NameAttribute(oid, value) for oid, value in attributes])  # type: ignore[arg-type]
    assert rfc2253_name(content(name)) == text


def test_a_name_of_several_values_keeps_their_order() -> None:
    several = [
        (NameOID.COMMON_NAME, "multi"),
        (NameOID.USER_ID, "u1"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "ou"),
    ]
    name = Name([RelativeDistinguishedName([NameAttribute(oid, value) for oid, value in several])])
    assert rfc2253_name(content(name)) == "OU=ou+CN=multi+UID=u1"


def test_the_subject_is_found_in_a_certificate() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    der = certificates.client_certificate().certificate.public_bytes(Encoding.DER)
    assert subject_name(der) == "CN=alice,OU=Orders,O=Example,C=DE"
    with pytest.raises(ValueError, match="cannot be read"):
        subject_name(der[:40])


SUBJECT = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SUBJECT, "Duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L, DEFAULT", SUBJECT, "duke@serviceusers"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U", SUBJECT, "DUKE@SERVICEUSERS"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/,RULE:^cn=.*$/x/L,DEFAULT", SUBJECT, SUBJECT),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", SUBJECT, "duke"),
        ("RULE:^CN=(.*?),.*$/$1$2-$12/", SUBJECT, "Duke$2-Duke2"),
        (r"RULE:^CN=(.*?),OU=(.*?)\/x.*$/$1\/$2/", "CN=a,OU=b/x,C=US", "a/b"),
        ("RULE:^CN=(?<name>.*?),.*$/${name}/", SUBJECT, "Duke"),
    ],
)
def test_rules_make_users_of_names(rules: str, subject: str, user: str) -> None:
    assert PrincipalMapper.parse(rules).name(subject) == user


def test_a_name_that_no_rule_applies_to_has_no_user() -> None:
    with pytest.raises(ValueError, match=r"No rules apply to CN=x"):
        PrincipalMapper.parse("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/").name("CN=x")


@pytest.mark.parametrize("rules", ["default", "RULE:^CN=(.*?)$/$1", "RULE:(/x/", "DEFAULT RULE:a/b/"])
def test_a_rule_that_cannot_be_read_is_named(rules: str) -> None:
    with pytest.raises(TlsError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapper.parse(rules)
