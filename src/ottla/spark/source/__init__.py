"""The source: `spark.read` and `spark.readStream` with `format("ottla")`."""
