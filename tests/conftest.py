"""One BLAS thread: on a busy machine OpenBLAS' helpers wait for each other, and small products gain nothing."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is first imported
