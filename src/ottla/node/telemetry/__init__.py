"""Telemetry of clients (KIP-714): who pushes what, and where it is shown and forwarded to; traces."""
