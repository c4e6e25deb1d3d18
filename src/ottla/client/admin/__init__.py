"""The admin client: describe a cluster, and change it.

async with Admin("localhost:9092") as admin:
    await admin.topics.create("orders", partitions=6)
    print(await admin.offsets.end("orders"))

Calls are grouped by subject, as on the command line. A call for a single thing raises `KafkaError`; a call
for many returns a result for each, which is the error of those that failed.
"""

from ottla.client.admin.admin import Admin, AdminConfig

__all__ = ["Admin", "AdminConfig"]
