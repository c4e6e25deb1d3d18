"""Transactions on a node: markers, verification before a produce, producer ids."""
