"""What a broker takes from batches that claim to be its own dead letters: any client with a right to write to
the topic can make some.
"""

import pytest

from ottla.node.share.dead_letter_topics import MAX_PLAIN_BYTES, OFFSET_HEADER, letter_offsets
from ottla.protocol.errors import KafkaError
from ottla.records.builder import build_batch
from ottla.records.types import Codec


def batch(*headers: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    return build_batch([(0, None, b"", ((OFFSET_HEADER, each),)) for each in headers], codec=codec)


def test_the_last_header_of_a_record_names_its_offset() -> None:
    both = ((OFFSET_HEADER, b"3"), ("other", b"4"), (OFFSET_HEADER, b"5"))
    assert letter_offsets(build_batch([(0, None, b"", both), (0, None, b"", ())]), 0) == {5}


def test_what_names_no_offset_is_passed_over() -> None:
    found = letter_offsets(batch(b"7", None, b"", b"-1", b"seven", b"9" * 5_000, b"8"), 0)
    assert found == {7, 8}


def test_what_inflates_beyond_a_bound_is_not_looked_into() -> None:
    large = build_batch([(0, None, bytes(MAX_PLAIN_BYTES), ())], codec=Codec.ZSTD)
    assert len(large) < 100_000
    with pytest.raises(KafkaError):
        letter_offsets(large, 0)
