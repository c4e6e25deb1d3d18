"""Names of subjects and contexts.

A subject of a context is written `:.context:subject`; one without is in the default context `.`. A context
alone is `:.context:`, and `:*:` stands for all of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
"""The context whose configuration and mode hold where neither a subject nor its context has one."""
CONTEXT_PREFIX: Final = ":."
WILDCARD: Final = ":*:"
_RESERVED: Final = ("__GLOBAL", "__EMPTY")


class QualifiedSubject(NamedTuple):
    """
    >>> QualifiedSubject.parse(":.staging:orders-value")
    QualifiedSubject(context='.staging', subject='orders-value')
    >>> str(QualifiedSubject.parse(":.:orders-value"))
    'orders-value'
    """

    context: str
    subject: str

    @classmethod
    def parse(cls, text: str) -> QualifiedSubject:
        if text.startswith(CONTEXT_PREFIX):
            context, _, subject = text[1:].partition(":")
            return cls(context, subject)
        if text.startswith(WILDCARD):
            return cls("*", text[len(WILDCARD) :])
        return cls(DEFAULT_CONTEXT, text)

    @property
    def prefix(self) -> str:
        """The context as subjects begin with it; nothing for the default one."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def is_context(self) -> bool:
        return not self.subject

    def __str__(self) -> str:
        return self.prefix + self.subject

    def is_valid(self, *, for_settings: bool = False) -> bool:
        """Whether schemas may be registered under it; or, `for_settings`, whether it may have some."""
        if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in str(self)) or self.subject in _RESERVED:
            return False
        return for_settings or (self.context != GLOBAL_CONTEXT and self.subject != "")

    def covers(self, subject: str) -> bool:
        """Whether a subject is this one, or in this context."""
        if str(self) == subject:
            return True
        return self.is_context and (
            self.context == GLOBAL_CONTEXT or self.context == QualifiedSubject.parse(subject).context
        )

    def child(self, subject: str) -> QualifiedSubject:
        """A subject as this one refers to it: one without a context is in the context of this one."""
        found = QualifiedSubject.parse(subject)
        return QualifiedSubject(self.context, subject) if found.context == DEFAULT_CONTEXT else found


def context_prefix(context: str) -> str:
    """The prefix of the subjects of a context by the name that a path has. ValueError if it is none.

    >>> context_prefix("staging"), context_prefix(":.staging:"), context_prefix(".")
    (':.staging:', ':.staging:', '')
    """
    name = context.removeprefix(":").removesuffix(":")
    if ":" in name:
        raise ValueError(f"Context name '{name}' cannot contain a colon")
    name = name if name.startswith(".") else f".{name}"
    return "" if name == DEFAULT_CONTEXT else f":{name}:"
