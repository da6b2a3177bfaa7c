"""``rocattn site``: the history website, asv's pages and our own."""
