"""Writing to topics: `df.write.format("ottla")` and `df.writeStream.format("ottla")`.

An exactly-once write is a two-phase commit, described in docs/spark/exactly-once.md. Tasks prepare
transactions (`task_writer`); the driver decides for the batch as a whole with one record of the decision log,
and then commits all transactions (`CommitCoordinator.commit`). `decision_state` has the rules of that log,
`decision_log` reads and appends it, `recovery` ends what earlier runs have left open.
"""
