"""Read machine code: bundles, code objects, disassembly, assembly text."""
