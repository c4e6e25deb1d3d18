"""The controller: decisions that turn requests into metadata records, a module for each concern.

`QuorumController` drives them; every other module here is pure: no I/O, no clock, no awaits.
"""
