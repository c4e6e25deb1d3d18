"""Runs of a simulated quorum of controllers, from one seed each."""
