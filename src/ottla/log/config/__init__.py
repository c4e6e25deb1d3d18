"""The configuration of a topic's log, which the modules of `ottla.log` and of its packages import."""
