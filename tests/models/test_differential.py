"""Random configurations of every family against transformers and llama.cpp."""

import importlib.util
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quiet_libraries import QUIET

REASON = "transformers is not installed: pip install 'bitnet-xtask[parity]'"
pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

from differential import KINDS, cases, check, load, report  # noqa: E402 - needs torch

pytestmark = [pytest.mark.slow, *QUIET]

# Configurations in which these tests once saw a difference.
FOUND = Path(__file__).parent / "found"
ENGINE = importlib.util.find_spec("xllamacpp") is not None
EXAMPLES = int(os.environ.get("BITNET_FUZZ_EXAMPLES", "24"))  # configurations of each family
OUTCOMES = Counter()


@pytest.fixture(scope="module", autouse=True)
def _report():
    """Print the outcomes of all configurations at the end, many of which must be exact.

    Were transformers to fail always, every configuration would be no model.
    """
    yield
    print(f"\n{report(OUTCOMES)}")
    exact = sum(count for (_, what), count in OUTCOMES.items() if what.startswith("exact"))
    assert exact > OUTCOMES.total() / 4 or not OUTCOMES


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_every_configuration_is_exact_or_refused(kind, data):
    case = data.draw(cases(kind))
    with tempfile.TemporaryDirectory() as folder:
        OUTCOMES[kind, check(case, Path(folder), engine=ENGINE)] += 1


@pytest.mark.parametrize("file", sorted(FOUND.glob("*.json")), ids=lambda file: file.stem)
def test_a_configuration_that_once_differed_is_exact_or_refused(file, tmp_path):
    assert check(load(file), tmp_path, engine=ENGINE) != "not a model"
