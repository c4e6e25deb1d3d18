"""Ottla for other people's tests: a throw-away node and a pytest plugin."""
