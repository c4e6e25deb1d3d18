"""Keeps the credentials of a catalog and its store out of messages: libraries put all into their errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from ottla.tables.settings import CatalogSettings

_HIDDEN = "[hidden]"
_NAMES = ("secret", "password", "token", "credential", "key", "sas", "signature", "authorization")
# Shorter ones would hide parts of ordinary words.
_MIN_LENGTH = 4


class Secrets(logging.Filter):
    """As a filter of a handler it changes all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def learn(self, catalog: CatalogSettings) -> None:
        """Take note of the credentials that the settings of a catalog have."""
        found = [
            part
            for name, value in catalog.properties.items()
            if any(each in name.lower() for each in _NAMES)
            for part in (value, value.partition(":")[2])
        ]
        found += [_password(each) for each in (catalog.uri, *catalog.properties.values()) if each is not None]
        self._add(found)

    def learn_url(self, url: str | None) -> None:
        """Take note of the password in an address."""
        self._add([_password(url or "")])

    def _add(self, texts: Iterable[str]) -> None:
        known = {*self._texts, *(each for text in texts for each in (text, unquote(text)))}
        # A longer one may have a shorter one in it.
        self._texts = sorted((each for each in known if len(each) >= _MIN_LENGTH), key=len, reverse=True)

    def hide(self, text: str) -> str:
        for each in self._texts:
            text = text.replace(each, _HIDDEN)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.exc_text = self.hide(logging.Formatter().formatException(record.exc_info))
        record.msg, record.args = self.hide(record.getMessage()), None
        return True


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""
