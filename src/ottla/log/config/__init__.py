"""The settings of a log, below everything that reads them."""
