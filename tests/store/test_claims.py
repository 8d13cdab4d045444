"""Claims on files of a store, which keep other commands from removing them."""

import os

import pytest

from bitnet.base import locks
from bitnet.base.errors import CacheBusy
from bitnet.store.claims import Claims
from bitnet.store.tree import claim_path

DIGEST = "0" * 64


@pytest.mark.skipif(os.name == "nt", reason="shared locks have no effect there")
def test_a_claim_that_fails_is_taken_by_the_next_attempt(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_LOCK_TIMEOUT", "0")
    path = claim_path(tmp_path, DIGEST)
    path.parent.mkdir(parents=True)
    with Claims(tmp_path) as claims:
        with locks.hold(path, timeout_s=0):
            for _attempt in range(2):
                with pytest.raises(CacheBusy):
                    claims.add(DIGEST)
        claims.add(DIGEST)
        with pytest.raises(CacheBusy), locks.hold(path, timeout_s=0):
            pass
    with locks.hold(path, timeout_s=0):
        pass
