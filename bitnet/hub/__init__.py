"""Outgoing connections: no other code opens any, and only :mod:`bitnet.commands` calls it."""
