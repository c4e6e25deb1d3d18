"""What the Python processes of Spark do beside their tasks, and where their clients get settings from."""
