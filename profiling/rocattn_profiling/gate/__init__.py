"""``rocattn gate``: measure two revisions side by side and fail on a proven regression."""
