"""The exact head: the output head without reading all of it, and provably the same tokens.

Few logits can decide a token. A copy of the head with five bits a weight gives approximate logits
and a bound on how far each is off; a sixth bit tightens the bounds of the rows that five bits
leave, and the rows that six leave are computed by the head's own kernel, with the bits of the full
product. Where that does not decide the token, or does not save time, the whole head is computed.
``docs/architecture/exact-head.md`` proves the bounds.

Callers know ``Head.logits``, what a sampler needs (``Needed``) and gets (``Logits``). The kernels
are in ``native/kernels/head``.
"""
