"""Draw every picture of the documents, and write the table that the gate's charts are made of.

.venv/bin/python docs/images/draw.py              # seconds
.venv/bin/python docs/images/draw.py --page       # minutes: also runs the gate and photographs its page
"""

from __future__ import annotations

import sys
from pathlib import Path

import backends
import cpu_threads
import flash_tile
import gate_flow
import gate_page
import gate_power

HERE = Path(__file__).resolve().parent
PICTURES = backends.PICTURES | cpu_threads.PICTURES | flash_tile.PICTURES | gate_flow.PICTURES | gate_power.PICTURES

if __name__ == "__main__":
    for file, picture in PICTURES.items():
        (HERE / file).write_text(picture())
    gate_power.TABLE.write_text(gate_power.table())
    if "--page" in sys.argv:
        gate_page.take(HERE)
