"""Why a schema cannot be used, and why data do not have it."""

from __future__ import annotations


class SchemaError(ValueError):
    """The text is no schema, or one that this decoder does not know."""


class WrongData(ValueError):
    """The data are none of the schema; the text says where."""
