"""The toolkit on top of rocattn: measure, gate, report, and the ``rocattn`` command."""
