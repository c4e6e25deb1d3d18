"""Kerberos names to names of users: Kafka's `KerberosShortNamer` over
`sasl.kerberos.principal.to.local.rules`, which are written as krb5's `auth_to_local`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(?:(?P<default>DEFAULT)|RULE:\[(?P<count>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<global>g)?)?/?(?P<case>[LU])?)"
)
_PARAMETER: Final = re.compile(r"\$(\d*)")
# A reference to a group as Java writes it, or an escaped character.
_REPLACEMENT: Final = re.compile(r"\\(.)|\$(\d)|\\")


class NoMatchingRule(ValueError):
    """The rules make no user of a Kerberos name."""


@dataclass(frozen=True, slots=True)
class KerberosRule:
    text: str
    # None for DEFAULT: the first part of a name of the default realm.
    components: int | None = None
    format: str = ""
    match: re.Pattern[str] | None = None
    substitution: tuple[re.Pattern[str], str, bool] | None = None
    case: str = ""

    def apply(self, realm: str, parts: list[str], default_realm: str) -> str | None:
        """The user of a name, or None if the rule is not about it."""
        if self.components is None:
            result = parts[0] if realm == default_realm else None
        elif len(parts) == self.components:
            result = self._formatted([realm, *parts])
        else:
            result = None
        if result is None:
            return None
        if "/" in result or "@" in result:
            raise NoMatchingRule(f"the rule {self.text} leaves the realm or the host in the name")
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)

    def _formatted(self, parameters: list[str]) -> str | None:
        base = _PARAMETER.sub(lambda found: parameters[int(found[1])], self.format)
        if self.match is not None and not self.match.fullmatch(base):
            return None
        if self.substitution is None:
            return base
        pattern, replacement, is_global = self.substitution
        return pattern.sub(replacement, base, count=0 if is_global else 1)


def parse_rules(texts: Iterable[str]) -> list[KerberosRule]:
    """Read rules. ValueError names the one that is wrong."""
    return [_rule(text.strip()) for text in texts if text.strip()]


def _rule(text: str) -> KerberosRule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"Invalid rule: {text}")
    if found["default"]:
        return KerberosRule(text)
    try:
        count = int(found["count"])
        if any(int(each) > count for each in _PARAMETER.findall(found["format"])):
            raise ValueError
        match = None if found["match"] is None else re.compile(found["match"])
        substitution = None
        if found["from"] is not None:
            replacement = _REPLACEMENT.sub(_python_replacement, found["to"])
            substitution = (re.compile(found["from"]), replacement, found["global"] is not None)
            substitution[0].sub(replacement, "")
    except (ValueError, re.error, IndexError):
        raise ValueError(f"Invalid rule: {text}") from None
    return KerberosRule(text, count, found["format"], match, substitution, found["case"] or "")


def _python_replacement(found: re.Match[str]) -> str:
    if found[2] is not None:
        return rf"\g<{found[2]}>"
    return re.escape(found[1]) if found[1] else r"\\"


class KerberosShortNamer:
    def __init__(self, rules: list[KerberosRule], default_realm: str) -> None:
        self._rules: Final = rules
        self._default_realm: Final = default_realm

    def short_name(self, name: str) -> str:
        """The user that a Kerberos name stands for. NoMatchingRule if it stands for none."""
        found = _NAME.fullmatch(name)
        if found is None:
            if "@" in name:
                raise NoMatchingRule("the Kerberos name is malformed")
            return name
        parts = [found[1]] if found[2] is None else [found[1], found[2]]
        for rule in self._rules:
            user = rule.apply(found[3], parts, self._default_realm)
            if user is not None:
                return user
        raise NoMatchingRule("no rule of sasl.kerberos.principal.to.local.rules applies to the name")
