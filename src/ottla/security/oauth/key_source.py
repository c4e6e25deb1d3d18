"""Where the keys of signed tokens come from: a file, or a URL that is asked in the background.

A file is read again once it has changed. Keys of a URL are asked for again after
`sasl.oauthbearer.jwks.endpoint.refresh.ms`, sooner after an error, and soon after a token that names an
unknown key, as keys are exchanged from time to time; but at most once in `MIN_INTERVAL_MS` for that reason,
so that made-up key ids do not become a flood of requests. Keys that are known stay in use while there are no
newer ones.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, read_file
from ottla.runtime.http import HttpError, HttpRequest, http_fetch
from ottla.runtime.pool import Pool
from ottla.security.oauth.jwks import JsonWebKeySet, JwksError, parse_jwks

_log = logging.getLogger(__name__)

MIN_INTERVAL_MS: Final = 10_000
_MAX_FILE_BYTES: Final = 1024 * 1024
# A node that stops waits for a request that is under way.
_TIMEOUT_SECONDS: Final = 5.0


class FileKeySource:
    """A key set in a file."""

    def __init__(self, disk: Disk, path: str) -> None:
        """JwksError if the file has no keys. It blocks."""
        self._disk: Final = disk
        self._path: Final = path
        self._changed_at = -1
        self._keys = self._read()

    @property
    def name(self) -> str:
        return self._path

    def keys(self) -> JsonWebKeySet:
        try:
            is_changed = self._disk.mtime_ms(self._path) != self._changed_at
        except OSError:
            is_changed = False
        if is_changed:
            try:
                self._keys = self._read()
            except JwksError as error:
                _log.warning("the changed keys of tokens are not used: %s", error)
        return self._keys

    def on_unknown_key(self) -> None:
        return None

    def _read(self) -> JsonWebKeySet:
        try:
            self._changed_at = self._disk.mtime_ms(self._path)
            data = read_file(self._disk, self._path)
        except OSError as error:
            raise JwksError(f"{self._path} cannot be read: {error.strerror or error}") from None
        if len(data) > _MAX_FILE_BYTES:
            raise JwksError(f"{self._path} is larger than {_MAX_FILE_BYTES} bytes")
        try:
            return parse_jwks(bytes(data))
        except JwksError as error:
            raise JwksError(f"{self._path}: {error}") from None


class UrlKeySource:
    """A key set behind a URL. `run` asks for it; until it has, no token is valid."""

    def __init__(
        self,
        url: str,
        pool: Pool,
        clock: Clock,
        *,
        refresh_ms: int,
        backoff_ms: int,
        max_backoff_ms: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._request: Final = HttpRequest(
            url,
            headers={"Accept": "application/json"},
            connect_timeout_seconds=_TIMEOUT_SECONDS,
            read_timeout_seconds=_TIMEOUT_SECONDS,
            tls=tls,
        )
        self._pool: Final = pool
        self._clock: Final = clock
        self._refresh_ms: Final = refresh_ms
        self._backoff_ms: Final = backoff_ms
        self._max_backoff_ms: Final = max_backoff_ms
        self._keys: JsonWebKeySet | None = None
        self._wanted: Final = asyncio.Event()
        # The monotonic time of the last request that an unknown key has caused.
        self._last_wanted_ms: float | None = None

    @property
    def name(self) -> str:
        return self._request.shown_url

    def keys(self) -> JsonWebKeySet | None:
        return self._keys

    def on_unknown_key(self) -> None:
        now_ms = self._clock.monotonic_ns() / 1e6
        if self._last_wanted_ms is None or now_ms - self._last_wanted_ms >= MIN_INTERVAL_MS:
            self._last_wanted_ms = now_ms
            self._wanted.set()

    async def run(self) -> None:
        """Keep the keys up to date until this is cancelled."""
        failures = 0
        while True:
            self._wanted.clear()
            try:
                self._keys = await self._pool.run(self._fetch)
                failures = 0
                pause_ms = self._refresh_ms
            except (HttpError, JwksError) as error:
                if not failures:
                    kept = "" if self._keys is None else "; those that are known stay in use"
                    _log.warning("there are no new keys to verify tokens with: %s%s", error, kept)
                pause_ms = min(self._backoff_ms * 2 ** min(failures, 30), self._max_backoff_ms)
                failures += 1
            try:
                await asyncio.wait_for(self._wanted.wait(), max(1, pause_ms) / 1000)
            except TimeoutError:
                continue

    def _fetch(self) -> JsonWebKeySet:
        response = http_fetch(self._request)
        if response.status != 200:
            raise HttpError(f"{self._request.shown_url} answers with status {response.status}")
        try:
            return parse_jwks(response.body)
        except JwksError as error:
            raise JwksError(f"{self._request.shown_url}: {error}") from None
