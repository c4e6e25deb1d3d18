"""The reference is what the code says."""

from __future__ import annotations

import re

from tests.support import api_docs


def test_the_page_is_as_the_docstrings_are() -> None:
    page = api_docs.PAGE.read_text()
    assert page == api_docs.render(), "run `python -m tests.support.api_docs`"


def test_everything_public_has_a_place_on_it() -> None:
    page = api_docs.PAGE.read_text()
    for name in ("send_nowait", "poll_arrow", "commit_nowait", "remove_members", "prefetch.max.bytes"):
        assert name in page


def test_nothing_public_goes_undescribed() -> None:
    assert not re.findall(r"^- \*\*`.*`\*\*$", api_docs.render(), re.MULTILINE)
