"""RottenFile what has rotted in files at rest."""
