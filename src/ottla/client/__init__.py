"""Producer, consumer and admin client: asyncio first, over `ottla.runtime`, against any Kafka broker from
2.1 on.
"""
