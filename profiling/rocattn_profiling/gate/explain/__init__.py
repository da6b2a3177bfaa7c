"""Why a benchmark became slower: what changed that it runs."""
