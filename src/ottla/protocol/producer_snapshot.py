"""The `.snapshot` file of a partition: its producers, as of the offset in the file's name.

The file is the version as int16 and then the body; `crc` is the CRC-32C of everything after itself.
"""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, uint32


class ProducerEntry(Struct):
    producer_id: int = int64()
    epoch: int = int16()
    last_sequence: int = int32()
    last_offset: int = int64()
    offset_delta: int = int32()
    timestamp: int = int64()
    coordinator_epoch: int = int32()
    current_txn_first_offset: int = int64()


class ProducerSnapshot(Message, versions="1"):
    """The producers of a partition at an offset."""

    crc: int = uint32()
    producer_entries: list[ProducerEntry] = array(ProducerEntry)
