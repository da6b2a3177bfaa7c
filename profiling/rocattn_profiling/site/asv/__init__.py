"""asv's own pages, published beside ours."""
