"""Run random steps on caches of keys and values.

A sequence here has a ``cache``, ``ids``, of which the first ``cache.length`` are in the cache, and
``append(ids)``, which drops the others first, and checks the keys and values that it reads back.
"""

import numpy as np


def take_steps(make, steps, context, check=lambda _sequence: None):
    """Run *steps*, pairs of a name and a number, on sequences that ``make()`` creates.

    *check* is called with the sequence after each step. At the end every sequence must still read
    its own ids, although it shares pages with others.
    """
    sequences = [make()]
    for number, (step, value) in enumerate(steps):
        sequence = sequences[number % len(sequences)]
        cache = sequence.cache
        if step == "append":
            if cache.length + value <= context:
                sequence.append([number * 1000 % 1777 + at for at in range(value)])
        elif step == "keep":
            cache.keep_truncatable_to(value)
        elif step == "mark":
            cache.mark()
        elif step == "truncate":
            expected = cache.reusable(value)
            assert expected <= min(value, cache.length)
            cache.truncate(value)
            assert cache.length == expected
        elif step == "branch":
            branch = make()
            length = cache.reusable(value)
            branch.cache.copy_prefix(cache, length)
            branch.ids = sequence.ids[:length]
            sequences.append(branch)
        else:
            assert step == "interrupt"
            cache.begin()[:] = np.nan  # states of a pass that does not end
            cache.truncate(cache.length)
        check(sequence)
    for sequence in sequences:
        sequence.append([7])
