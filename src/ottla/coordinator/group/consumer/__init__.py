"""Consumer groups of KIP-848: heartbeats, target assignments and reconciliation on the broker."""
