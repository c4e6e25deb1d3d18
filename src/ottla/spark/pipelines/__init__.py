"""Spark's declarative pipelines over topics: projects, runs, progress and checkpoints.

A project is Spark's own kind, `spark-pipeline.yml` with definitions beside it; `spark-pipelines run` takes
it as well. Nothing here changes what a pipeline means: this package starts it sooner, shows what it does
and tells how far it has come. Its modules read files and talk to Spark; drawing is the command line's
business.
"""
