"""The endpoints of the console, one module for each page."""
