"""The module by which Spark discovers the format "ottla".

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`. One
such module that fails to import takes all the others with it, so this one never does: it logs what is
missing, and the format is then not available.
"""

from __future__ import annotations

import logging

try:
    from ottla.spark.datasource import OttlaDataSource as DefaultSource
except ImportError as error:
    logging.getLogger(__name__).warning(
        'format("ottla") is not available: %s (pip install "ottla[spark]")', error
    )
    __all__ = []
else:
    __all__ = ["DefaultSource"]
