"""The only access to the machine: clock, randomness, disk, network, the pool for blocking calls, the process.

The packages of brokers and clients receive these as a `Runtime` and import neither `time` nor `os` nor
`socket`. So the same code runs on a real machine and, with the replacements of `ottla.sim`, under a virtual
clock and injected faults.
"""
