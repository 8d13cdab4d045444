"""The decoder-only transformer, configured by the families."""
