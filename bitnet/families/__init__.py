"""The families of models: names, defaults, keys, tensors, differences of the block.

A file creates each :class:`~bitnet.families.family.Family` and registers it, with its relatives; no
other file lists it. Loading, the check of keys and ``docs/reference/models.md`` follow from the
table.

In these files, ``_name(keys)`` makes the :class:`~bitnet.families.blocks.ModelConfig` of a family,
and ``_name_keys(config)`` its GGUF keys, from a ``config.json``. Functions that end with
``_values``, ``_orders``, ``_parts`` or ``_factors`` are for the fields of that name in a family.
"""
