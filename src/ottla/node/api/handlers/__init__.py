"""One module per API, named after it, with the `handle(context, request)` that `api.routes` refers to."""
