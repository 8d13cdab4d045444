"""Exact tokenizers: found, rebuilt or refused, never approximated."""
