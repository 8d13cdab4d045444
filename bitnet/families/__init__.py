"""The families of models, one file each: names, defaults, keys, tensors, differences of the block.

Each file creates a :class:`~bitnet.families.family.Family` and registers it; no other file lists
it. Loading, the check of keys and ``docs/reference/models.md`` follow from the table.
"""
