"""Spark's declarative pipelines over topics: projects, runs, progress and checkpoints.

A project is a standard one of Spark, `spark-pipeline.yml` with definitions beside it; `spark-pipelines run`
runs it as well. This package does not change what a pipeline means: it starts it sooner, and reports its
progress. Its modules read files and talk to Spark; the command line does the output.
"""
