"""``rocattn report``: one report from records, or from a profiler's files."""
