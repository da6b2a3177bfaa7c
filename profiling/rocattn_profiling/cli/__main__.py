"""``python -m rocattn_profiling.cli`` is the ``rocattn`` command of that interpreter."""

import sys

from rocattn_profiling.cli import main

sys.exit(main())
