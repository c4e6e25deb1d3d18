"""Builds the one compiled module, `ottla.records._kernel`; everything else is declared in pyproject.toml.

With `OTTLA_KERNEL=python` nothing is compiled: clients then work with the kernel in Python, `_kernel.py`.
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

kernel = Extension(
    "ottla.records._kernel",
    ["src/ottla/records/_kernel.pyx"],
    depends=sorted(glob("src/ottla/records/kernel/*.pxi")),
    extra_compile_args=["-O3"],
)
compiled = [] if os.environ.get("OTTLA_KERNEL") == "python" else cythonize([kernel], language_level=3)
setup(ext_modules=compiled)
