"""The schema registry of a node: its topic, and its place at the node's HTTP. Imported with the first
request.
"""
