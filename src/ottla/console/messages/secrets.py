"""What of internal records must not be seen: the metadata log holds the credentials of users."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["hide_secrets"]

_HIDDEN: Final = "(hidden)"
_SECRET_FIELDS: Final = {
    "UserScramCredentialRecord": ("salt", "storedKey", "serverKey"),
    "DelegationTokenRecord": ("hmac",),
}
_SECRET_SETTING: Final = re.compile(r"password|secret|jaas\.config|keystore\.key|credential|token", re.I)


def hide_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """A decoded record without what must not be seen."""
    kind, data = document.get("type"), document.get("data")
    if not isinstance(data, dict):
        return document
    hidden = [name for name in _SECRET_FIELDS.get(str(kind), ()) if name in data]
    if kind == "ConfigRecord" and _SECRET_SETTING.search(str(data.get("name"))):
        hidden.append("value")
    return {**document, "data": {**data, **dict.fromkeys(hidden, _HIDDEN)}} if hidden else document
