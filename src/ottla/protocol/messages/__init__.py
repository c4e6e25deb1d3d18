"""One module for each API, named as the API, with its request, its response and their structs."""
