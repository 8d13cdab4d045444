"""Compute backends: the operations a model is made of."""
