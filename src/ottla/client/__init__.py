"""The producer, consumer and admin clients: asyncio first, on `ottla.runtime`, for any Kafka broker from 2.1
on.
"""
