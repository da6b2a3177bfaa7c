"""Machine code, plans and backend choices of rocattn, compared for its plug-in."""
