"""The exact head: the output head without reading all of it, and provably the same tokens.

Few logits can decide a token. A copy of the head with five bits a weight gives approximate logits
and a bound on how far each is off; a sixth bit tightens the bounds of the rows that five bits
leave, and the rows that six leave are computed by the head's own kernel, with the bits of the full
product. Where that does not decide the token, or does not save time, the whole head is computed.
``docs/architecture/exact-head.md`` proves the bounds.

    logits.py       the logits that a sampler needs, and those that it gets
    head.py         Head.logits: computes them from the copy or from the whole head
    copy.py         HeadCopy: makes the copy and finds logits by it
    premises.py     checks that a copy from the cache has what the proof assumes
    costs.py        counts the bytes read, which tell if the copy saves time
    reference.py    the copy in NumPy: what its bytes mean

Callers know ``Head.logits`` and ``logits.py``. The kernels are in ``native/kernels/head``, kept
copies in ``bitnet.cache.exact_heads``.
"""
