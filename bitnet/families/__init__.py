"""The families of models, one file each: names, defaults, keys, tensors, differences of the block.

A file here makes a :class:`~bitnet.families.family.Family` and registers it; nothing else has to
know about it. Reading a model, checking its keys and ``docs/reference/models.md`` follow from it.
"""
