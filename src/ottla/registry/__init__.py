"""A schema registry: its state by the records of `_schemas`, its decisions, and its REST API. No clock, no
I/O.
"""
