"""Read the records that a consumer sees of fetched bytes.

A fetch returns whole batches, so it may begin before the offset that was asked for and end inside of a
batch; it holds control records and, below the last stable offset, the data of aborted transactions. A
`BatchReader` gives back exactly the records from its offset on that a consumer is shown, and knows where to
go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.records._kernel import BatchReader
from ottla.records.checksum import crc32c
from ottla.records.compression import decompress
from ottla.records.types import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from ottla.records.types import Codec

    Decompress = Callable[[Codec, Buffer, int], Buffer]

MAX_OFFSET = 2**63 - 1


def open_reader(
    *,
    start_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    check_crc: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    decompress: Decompress = decompress,
) -> BatchReader:
    """A reader of one partition for the offsets in [start_offset, end_offset)."""
    return BatchReader(
        start_offset=start_offset,
        end_offset=end_offset,
        check_crc=check_crc,
        decompress=decompress,
        crc32c=crc32c,
        max_decompressed_bytes=max_decompressed_bytes,
    )
