"""Tests of ``bitnet/ROOM/MODULE.py`` are in ``tests/ROOM/test_MODULE.py``, or a table names them.

The table is that of tests/README.md.
"""

import mirror
import pytest

HINT = "add tests/ROOM/test_MODULE.py, or a row in tests/README.md (inv test --index)"


def test_every_module_has_a_file_of_tests_or_a_row_and_not_both():
    without_mirror = {module for module in mirror.modules() if not mirror.mirrors(module)}
    assert set(mirror.rows()) == without_mirror, HINT


@pytest.mark.parametrize(("module", "files"), mirror.rows().items())
def test_a_row_names_files_of_tests_that_exist(module, files):
    assert files
    for file in files:
        assert (mirror.ROOT / file).is_file(), HINT
