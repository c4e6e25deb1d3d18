"""Groups of consumers and their committed offsets, over ``__consumer_offsets``.

* ``machine``: one partition's groups and offsets as a state machine; everything below is a part of it,
* ``classic_group``, ``classic_rebalance``, ``classic``: groups whose members assign partitions themselves,
* ``consumer_group``, ``consumer``, ``consumer_members``, ``target``, ``assignors``, ``reconcile``,
  ``subscriptions``: groups whose partitions the coordinator assigns,
* ``mixed``, ``migration``: members of the one protocol in groups of the other, while a fleet is upgraded,
* ``offsets``, ``offset_requests``: what groups have read,
* ``records``, ``replay``: from state to records and back,
* ``admin``: listing, describing, deleting and expiring,
* ``service``: what a node talks to.
"""
