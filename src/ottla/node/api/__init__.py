"""Requests: routes, dispatch, contexts, cached responses, forwarding, and one handler for each API."""
