"""What the Python worker of a Spark task does beside the task."""
