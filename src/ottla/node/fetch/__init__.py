"""Fetch: sessions, the reader behind a Fetch request, and reads that leave the event loop."""
