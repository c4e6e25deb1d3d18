"""Features that need pyarrow say how to get it."""

from __future__ import annotations

import sys

import pytest

from ottla.client.consumer import Consumer


async def test_columns_without_pyarrow_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    consumer: Consumer[bytes, bytes] = Consumer("127.0.0.1:1")
    with pytest.raises(ImportError, match=r'pip install "ottla\[arrow\]"'):
        await consumer.poll_arrow()
    await consumer.close()
