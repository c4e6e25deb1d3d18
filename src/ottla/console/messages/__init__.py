"""Messages of topics: find, filter and decode them."""
