"""Tests of the doors to the world, against the machine itself."""
