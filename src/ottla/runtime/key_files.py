"""Give private keys to OpenSSL, which reads them from files only, without leaving them on a disk."""

from __future__ import annotations

import os
import ssl
import sys
import tempfile


def load_certificate_chain(context: ssl.SSLContext, pem: bytes, password: bytes | None = None) -> None:
    """Load a private key and its certificates. SSLError if they do not fit each other."""
    if sys.platform == "linux":
        fd = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(fd, pem)
            context.load_cert_chain(f"/proc/self/fd/{fd}", password=password)
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile(prefix="ottla-") as file:  # only its owner may read it
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=password)
