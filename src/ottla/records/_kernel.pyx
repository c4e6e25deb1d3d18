# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled part of `ottla.records`: everything that walks records one by one.

A batch's records are a run of length-prefixed entries made of zigzag varints and byte strings, and every
one of those lengths may come from a hostile client. All walking therefore goes through `read_entry`, which
checks each length against the end of the record, and the record against the end of the payload, before it
moves. Nothing else here takes a length from the input on trust, so the rest may run without bounds checks
and, where the walk is long, without the GIL.
"""

include "kernel/wire.pxi"
include "kernel/memory.pxi"
include "kernel/consuming.pxi"
include "kernel/batches.pxi"
include "kernel/encoding.pxi"
include "kernel/validation.pxi"
include "kernel/compaction.pxi"
include "kernel/columns.pxi"
include "kernel/reading.pxi"
include "kernel/hashing.pxi"
include "kernel/rows.pxi"
include "kernel/avro.pxi"
include "kernel/log_reading.pxi"
include "kernel/lane.pxi"
include "kernel/produce_lane.pxi"
include "kernel/fetch_lane.pxi"
