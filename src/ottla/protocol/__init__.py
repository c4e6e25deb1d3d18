"""The wire: primitive types, one class per message for all its versions, the API table, error codes.

Nothing here is imported eagerly: import the module that holds what you need (`ottla.protocol.errors`,
`ottla.protocol.api`, `ottla.protocol.messages.fetch`), so that a process pays only for the messages it uses.
"""
