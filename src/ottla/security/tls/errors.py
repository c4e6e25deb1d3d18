"""The failure of settings or key material of TLS."""

from __future__ import annotations


class TlsError(ValueError):
    """Settings of TLS that cannot be used: the text names the setting and the file, and never a secret."""
