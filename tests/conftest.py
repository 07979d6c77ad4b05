"""The process that the tests run in, as the project's own processes are."""

import os

# Before NumPy is loaded. Tuning runs with this too (fewtune.tuning.child_process): products of
# small matrices take fifty times as long where OpenBLAS's threads wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
