"""The toolkit on top of rocattn: one folder per verb of ``rocattn``, above a kit that knows no verb."""
