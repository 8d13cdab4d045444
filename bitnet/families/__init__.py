"""The families of models: names, defaults, keys, tensors, differences of the block.

A file creates each :class:`~bitnet.families.family.Family` and registers it, with its relatives; no
other file lists it. Loading, the check of keys and ``docs/reference/models.md`` follow from the
table.
"""
