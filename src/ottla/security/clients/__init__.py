"""What clients need of security: their settings, and the protection of their connections."""
