"""Answers that are kept: the same question about the same metadata has the same bytes.

A hundred clients that come back together after a restart all ask for the same topics. What they are told
follows from the metadata image, the version, the address by which they came and the body of the request,
and from nothing else; so it is built and encoded once, and built anew when the image is another one. The
memory is bounded: the oldest answers make room, and one that is too large by itself is not kept.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ottla.metadata.image.image import MetadataImage

Question: TypeAlias = tuple[int, tuple[str, int], bytes]
"""Version, the address the client came by, the body of the request."""

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_QUESTION_BYTES: Final = MAX_BYTES // 8


class Memo:
    """What one API of one listener has answered at one image."""

    __slots__ = ("_answers", "_image", "_room")

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._answers: dict[Question, bytes] = {}
        self._room = MAX_BYTES

    def find(self, image: MetadataImage, question: Question) -> bytes | None:
        return self._answers.get(question) if image is self._image else None

    def keep(self, image: MetadataImage, question: Question, answer: bytes) -> None:
        if image is not self._image:
            self._image = image
            self._answers = {}
            self._room = MAX_BYTES
        size = _size(question, answer)
        if size > MAX_BYTES or question in self._answers:
            return
        while self._room < size:
            oldest = next(iter(self._answers))
            self._room += _size(oldest, self._answers.pop(oldest))
        self._answers[question] = answer
        self._room -= size


def _size(question: Question, answer: bytes) -> int:
    return len(question[2]) + len(answer) + 512  # the dict, the tuple and the objects' own heads
