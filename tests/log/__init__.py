"""Tests of `ottla.log`."""
