"""Caches of keys and values that are taken through drawn steps.

A sequence has a ``cache``, the ``ids`` that it holds, and ``append(ids)``, which checks what it
reads back.
"""

import numpy as np


def take_steps(make, steps, context, check=lambda _sequence: None):
    """Take sequences, which ``make()`` creates, through *steps*: names with a number each.

    *check* is called with the sequence after each step. At the end every sequence still reads its
    own ids, whatever it shares with others.
    """
    sequences = [make()]
    for number, (step, value) in enumerate(steps):
        sequence = sequences[number % len(sequences)]
        cache = sequence.cache
        if step == "append":
            if cache.length + value <= context:
                sequence.append([number * 1000 % 1777 + at for at in range(value)])
        elif step == "keep":
            cache.keep(value)
        elif step == "mark":
            cache.mark()
        elif step == "truncate":
            expected = cache.reusable(value)
            assert expected <= min(value, cache.length)
            cache.truncate(value)
            assert cache.length == expected
        elif step == "branch":
            other = make()
            length = cache.reusable(value)
            other.cache.copy_prefix(cache, length)
            other.ids = sequence.ids[:length]
            sequences.append(other)
        else:
            assert step == "interrupt"
            cache.begin()[:] = np.nan
            cache.truncate(cache.length)
        check(sequence)
    for sequence in sequences:
        sequence.append([7])
