"""Azurite, the emulator of Azure Blob Storage that Microsoft publishes, over a directory.

It is taken from the PATH, or from `OTTLA_AZURITE=PATH`: installing it takes longer than the tests with it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

from ottla.testing.cluster_plan import free_ports

AZURE_SKIP = "Azure tests skipped: "
PROGRAM_VARIABLE = "OTTLA_AZURITE"
# The account of every Azurite; its key is public.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "segments"
_START_SECONDS = 60
_API_VERSION = "2021-12-02"


def missing_requirement() -> str | None:
    """What is missing on this machine; None if Azurite is there."""
    if _program() is None:
        return f"no `azurite-blob` on the PATH or in {PROGRAM_VARIABLE} (npm install --global azurite@3.35.0)"
    return None


def _program() -> str | None:
    return os.environ.get(PROGRAM_VARIABLE) or shutil.which("azurite-blob")


@contextlib.contextmanager
def azure_server(root: Path) -> Iterator[str]:
    """Run it with one container; the connection string of its account."""
    (port,) = free_ports(1)  # of those that no client's connection takes meanwhile
    program = _program()
    assert program is not None
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(root / "data")]
    with (root / "log").open("wb") as log:
        # Clients may be newer than it: what they use of the interface is what it knows.
        process = subprocess.Popen(
            [program, *where, "--skipApiVersionCheck"], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            _create_container(endpoint, process, root / "log")
            yield f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={endpoint};"
        finally:
            process.terminate()
            process.wait(60)


def _create_container(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    date = formatdate(usegmt=True)
    path = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}"
    headers = f"x-ms-date:{date}\nx-ms-version:{_API_VERSION}"
    signed = "PUT" + "\n" * 12 + f"{headers}\n{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"{endpoint}/{CONTAINER}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": _API_VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        },
    )
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(request, timeout=_START_SECONDS).close()
        except ConnectionError:
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ConnectionError):
                raise
        else:
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)
