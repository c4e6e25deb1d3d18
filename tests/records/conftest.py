"""Property tests judge results, not the speed of a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("records", deadline=None)
settings.load_profile("records")
