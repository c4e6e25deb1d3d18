"""User names of the subjects of certificates, by `ssl.principal.mapping.rules`: Kafka's `SslPrincipalMapper`.

A rule is `DEFAULT`, which takes the whole name, or `RULE:pattern/replacement/` with `L` or `U` behind it to
change the case. The first rule whose pattern matches the whole name decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ottla.security.tls.errors import TlsError

_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)"
)
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$\{([A-Za-z][A-Za-z0-9]*)\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _MappingRule:
    """`pattern` None takes the name as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(lambda match: _replaced(self.replacement, match), name)
        if self.case == "L":
            return mapped.lower()
        return mapped.upper() if self.case == "U" else mapped


class PrincipalMapper:
    """Make it by `parse`."""

    __slots__ = ("_rules", "_text")

    def __init__(self, rules: list[_MappingRule], text: str) -> None:
        self._rules: Final = rules
        self._text: Final = text

    @classmethod
    def parse(cls, text: str) -> PrincipalMapper:
        """Read the rules. TlsError names the part that is none."""
        rules: list[_MappingRule] = []
        rest = text.strip()
        while rest:
            match = _RULE.match(rest)
            end = match.end() if match is not None else 0
            following = rest[end:].lstrip()
            if match is None or (following and not following.startswith(",")):
                raise TlsError(f"ssl.principal.mapping.rules: Invalid rule: `{rest}`")
            rules.append(_rule(match))
            rest = following[1:].lstrip()
        return cls(rules, text)

    def name(self, subject: str) -> str:
        """The user name of a subject. ValueError if no rule applies."""
        for rule in self._rules:
            mapped = rule.apply(subject)
            if mapped is not None:
                return mapped
        raise ValueError(f"No rules apply to {subject}, ssl.principal.mapping.rules are {self._text}")


def _rule(match: re.Match[str]) -> _MappingRule:
    if match["default"] is not None:
        return _MappingRule(None)
    try:
        pattern = re.compile(_NAMED_GROUP.sub("(?P<", match["pattern"]))
    except re.error as error:
        raise TlsError(f"ssl.principal.mapping.rules: {match['pattern']} is no pattern: {error}") from None
    return _MappingRule(pattern, match["replacement"], match["case"])


def _replaced(replacement: str, match: re.Match[str]) -> str:
    """The replacement with the groups of a match; a reference to a group that is not there stays as it is."""

    def value(reference: re.Match[str]) -> str:
        if reference[1] is not None:
            return reference[1]
        if reference[3] is not None:
            return match[reference[3]] or ""
        digits = reference[2]
        number, used = int(digits), len(digits)
        while number > match.re.groups and number >= 10:
            number //= 10
            used -= 1
        if number > match.re.groups:
            return reference[0]
        return (match[number] or "") + digits[used:]

    return _REFERENCE.sub(value, replacement)
