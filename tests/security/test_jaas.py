"""JAAS text is read as Kafka's `JaasConfig` reads it."""

from __future__ import annotations

import pytest

from ottla.security.jaas import JaasError, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_usual_entry() -> None:
    entry = parse_jaas(f'{PLAIN} required username="admin" password="a b;=" user_alice="x" ;')
    assert entry.login_module == PLAIN
    assert entry.options == {"username": "admin", "password": "a b;=", "user_alice": "x"}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("M required;", {}),
        ("M REQUIRED a=b;", {"a": "b"}),
        ("M optional a='b c' d=\"it's\";", {"a": "b c", "d": "it's"}),
        ("M sufficient\n  a=b // a comment; \n /* another\n one */ c=d;", {"a": "b", "c": "d"}),
        ("M requisite a=b / the rest of the line\n;", {"a": "b"}),
        (r'M required p="a\"b\\c\n\t\101\7";', {"p": 'a"b\\c\n\tA\7'}),
        ("M required a-b_c$d=e1.f-2;", {"a-b_c$d": "e1.f-2"}),
        ('M required user_jörg="ü€";', {"user_jörg": "ü€"}),
        ('M required "user_a b"="c";', {"user_a b": "c"}),
        ('M required a="b\n;', {"a": "b"}),
        ("M required a=b a=c;", {"a": "c"}),
    ],
)
def test_tokens_are_those_of_java(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text).options == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Login module not specified in JAAS config"),
        (" // nothing", "Login module not specified in JAAS config"),
        ("M", "Login module control flag not specified"),
        ("M ;", "Login module control flag is not available"),
        ("M maybe;", "Invalid login module control flag"),
        ("M required a=b", "not terminated by semi-colon"),
        ("M required a;", "Value not specified for key 'a'"),
        ("M required a=;", "Value not specified for key 'a'"),
        ("M required a=1234;", "Value not specified for key 'a'"),
        ("M required user_a@b=c;", "Value not specified for key 'user_a'"),
        ("M required a=b; N required;", "contains 2 login modules, should be 1 module"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(JaasError, match=message):
        parse_jaas(text)


def test_no_value_is_shown() -> None:
    entry = parse_jaas('M required password="hunter2";')
    assert "hunter2" not in repr(entry)
    with pytest.raises(JaasError) as caught:
        parse_jaas('M required password="hunter2" username=;')
    assert "hunter2" not in str(caught.value)
