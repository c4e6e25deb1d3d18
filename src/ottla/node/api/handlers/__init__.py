"""One module per API, named after it, with a `handle(context, request)` that `node.dispatch` finds."""
