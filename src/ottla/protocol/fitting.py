"""Messages for peers that speak an older version."""

from __future__ import annotations

from ottla.protocol.schema import Struct


def leave_out_what_is_newer(message: Struct, version: int) -> None:
    """Make a message fit for a version: it does without what that does not have."""
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if not field.in_version(version):
            setattr(message, field.name, getattr(type(message)(), field.name))
        elif isinstance(value, Struct):
            leave_out_what_is_newer(value, version)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    leave_out_what_is_newer(each, version)
