"""The metrics of the tables of a node: a cheap way to wait for them."""

from __future__ import annotations

import re
import urllib.request

from ottla.testing.local_node import LocalNode


def metric(node: LocalNode, name: str, topic: str = "orders") -> float | None:
    text = urllib.request.urlopen(f"{node.http_url}/metrics").read().decode()
    found = re.search(rf'^{name}{{topic="{topic}"}} (\S+)$', text, re.MULTILINE)
    return None if found is None else float(found[1])
