"""The state of a streams group: its topology, its members, and the assignment of their tasks."""
