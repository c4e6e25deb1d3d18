"""Ottla in the tests of other projects: a throw-away node or cluster, and a pytest plugin."""
