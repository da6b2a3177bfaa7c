"""Code shared by all pages: templates, charts, readable quantities."""
