"""What of internal records must not be seen: the metadata log holds the credentials of users."""

from __future__ import annotations

from typing import Any, Final

_HIDDEN: Final = "(hidden)"
_SECRET_FIELDS: Final = {
    "UserScramCredentialRecord": ("salt", "storedKey", "serverKey"),
    "DelegationTokenRecord": ("hmac",),
}


def hide_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """A decoded record without what must not be seen."""
    kind, data = document.get("type"), document.get("data")
    if not isinstance(data, dict):
        return document
    hidden = [name for name in _SECRET_FIELDS.get(str(kind), ()) if name in data]
    if kind == "ConfigRecord" and data.get("value") is not None:
        from ottla.node.config.describe import is_sensitive

        if is_sensitive(int(data["resourceType"]), str(data["name"])):
            hidden.append("value")
    return {**document, "data": {**data, **dict.fromkeys(hidden, _HIDDEN)}} if hidden else document
