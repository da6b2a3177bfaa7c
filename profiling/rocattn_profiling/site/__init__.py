"""``rocattn site``: the history website, with our pages and asv's."""
