"""One module per API, named after it, with the `handle(context, request)` that `api.routes` refers to. Fetch
alone has two: `fetch` for partitions, `fetch_metadata` for the metadata log on a controller's listener.
"""
