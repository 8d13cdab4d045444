"""One decoder and the families that configure it."""
