"""The chain of samplers against llama.cpp's, on the same logits."""

import lzma
from pathlib import Path

import numpy as np
import pytest
from engine_samplers import ask
from hypothesis import given
from hypothesis import strategies as st

from bitnet.formats.samplers import SAMPLERS
from bitnet.runtime.repetitions import Repetitions, find_breakers
from bitnet.runtime.request import Request
from bitnet.runtime.sampler_chain import Candidates, SamplerChain
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.load import load_spec

VOCABULARY = Path(__file__).parents[1] / "data" / "vocab" / "ggml-vocab-gpt-2.gguf.xz"
FLOAT32 = 2e-5  # absolute error of probabilities that llama.cpp computes in float32
# Values of the four basic samplers that leave the logits as they are.
FOUR = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "gpt-2.gguf"
    path.write_bytes(lzma.decompress(VOCABULARY.read_bytes()))
    return path


def chain(options, four=None, text=(), breakers=None, draw=lambda: 0.0):
    """A chain without penalties but DRY's; *four* are values of the samplers in FOUR."""
    repetitions = Repetitions(options, breakers or {}, text)

    def penalize_repetitions(tokens):
        logits = tokens.logits.copy()
        for token, penalty in repetitions.penalties().items():
            logits[tokens.ids == token] -= penalty
        return tokens.with_logits(logits)

    sampling = options.sampling._replace(**{**FOUR, **(four or {})})
    return SamplerChain(
        options,
        sampling,
        penalize=lambda tokens: tokens,
        penalize_repetitions=penalize_repetitions,
        draw=draw,
    )


def distribution(options, logits, four=None, text=(), breakers=None):
    """Probabilities of the tokens that are left, by their ids."""
    tokens = Candidates(np.arange(len(logits)), np.asarray(logits, dtype=np.float64))
    kept = chain(options, four, text, breakers).filter(tokens, len(logits))
    probabilities = kept.probabilities()
    return {
        int(id): probability
        for id, probability in zip(kept.ids, probabilities, strict=True)
        if probability > 0
    }


def engine_chain(options, four):
    """The chain of *options* and *four* as llama.cpp's samplers: a name and arguments for each."""
    values = {**FOUR, **four}
    least = options.min_keep
    steps = {
        "top_n_sigma": ["top_n_sigma", options.top_n_sigma],
        "top_k": ["top_k", values["top_k"]],
        "typ_p": ["typical", options.typical_p, least],
        "top_p": ["top_p", values["top_p"], least],
        "min_p": ["min_p", values["min_p"], least],
        "xtc": ["xtc", options.sampling.xtc_probability, options.sampling.xtc_threshold, least, 1],
        "temperature": [
            "temp_ext", values["temperature"], options.dynatemp_range, options.dynatemp_exponent
        ],
    }  # fmt: skip
    return [steps[name] for name in options.sampling.order if name in steps]


def random_case(seed):
    """Random options, values of the samplers in FOUR, and logits.

    A probability is rarely so near the bound of a sampler that rounding decides on its token.
    """
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 400))
    logits = (random.normal(size=size) * random.uniform(0.2, 6)).astype(np.float32)
    if random.random() < 0.2:
        logits[random.random(size) < 0.3] = -np.inf
        logits[0] = 0.0
    options = {
        "typical_p": random.choice([1.0, random.uniform(0.05, 0.99)]),
        "top_n_sigma": random.choice([0.0, random.uniform(0.2, 3)]),
        "xtc_probability": random.choice([0.0, 1.0]),
        "xtc_threshold": random.uniform(0.02, 0.6),
        "dynatemp_range": random.choice([0.0, random.uniform(0.1, 2)]),
        "dynatemp_exponent": random.uniform(0.3, 3),
        "min_keep": int(random.choice([0, 0, 3])),
    }
    four = {
        "temperature": random.choice([0.0, random.uniform(0.1, 2), 1.0]),
        "top_k": int(random.choice([0, 1, random.integers(2, 60)])),
        "top_p": random.choice([1.0, random.uniform(0.1, 0.99)]),
        "min_p": random.choice([0.0, random.uniform(0.001, 0.5)]),
    }
    if options["typical_p"] < 1:
        # llama.cpp's entropy is not a number where a probability is zero.
        options["top_n_sigma"] = 0.0
        logits = np.nan_to_num(logits, neginf=-3.0)
    names = [name for name in SAMPLERS if name not in ("penalties", "dry")]
    if random.random() < 0.4:
        random.shuffle(names)
        if options["typical_p"] < 1:
            names.sort(key="temperature".__eq__)  # last: temperature 0 leaves zero probabilities
        options["samplers"] = names[: int(random.integers(1, len(names) + 1))]
    return Request(**options), four, logits


def as_json(logits):
    """Logits as JSON numbers; None: -inf."""
    return [None if logit == -np.inf else float(logit) for logit in logits]


def assert_same(ours, theirs, what):
    """Check that both distributions have equal tokens and probabilities; *what* names the case."""
    theirs = {int(id): probability for id, probability in theirs.items()}
    assert ours.keys() == theirs.keys(), what
    for id, probability in ours.items():
        assert probability == pytest.approx(theirs[id], abs=FLOAT32, rel=1e-3), what


def test_any_chain_keeps_the_tokens_of_llama_cpps_chain_with_its_probabilities(
    vocabulary, tmp_path
):
    pytest.importorskip("xllamacpp")
    cases = [random_case(seed) for seed in range(600)]
    requests = [
        {"samplers": engine_chain(options, four), "text": [], "logits": as_json(logits)}
        for options, four, logits in cases
    ]
    for seed, (case, theirs) in enumerate(
        zip(cases, ask("sample", vocabulary, requests, tmp_path), strict=True)
    ):
        options, four, logits = case
        assert_same(distribution(options, logits, four), theirs, (seed, options, four))


def random_text(random):
    """A text of few tokens, which repeats itself."""
    text = []
    while len(text) < random.integers(0, 120):
        if len(text) > 4 and random.random() < 0.5:
            begin = int(random.integers(0, len(text) - 2))
            text += text[begin : begin + int(random.integers(1, 12))]
        else:
            text.append(int(random.integers(0, 30)))
    return text


def test_dry_penalizes_the_tokens_that_llama_cpp_penalizes_by_as_much(vocabulary, tmp_path):
    pytest.importorskip("xllamacpp")
    tokenizer = Tokenizer.from_spec(load_spec(vocabulary))
    texts = [["\n", ":", '"', "*"], ["AB", "+,"], ["!"], ["'()*", "*+"]]
    breakers_by_text = [find_breakers(tokenizer, breakers) for breakers in texts]
    requests = []
    cases = []
    for seed in range(80):
        random = np.random.default_rng(seed)
        breakers = texts[seed % len(texts)]
        options = Request(
            dry_multiplier=float(random.uniform(0.1, 2)),
            dry_base=float(random.choice([1.0, 1.75, 3.0])),
            dry_allowed_length=int(random.integers(0, 4)),
            dry_penalty_last_n=int(random.choice([8, 20, 64, 500])),
            dry_sequence_breakers=breakers,
        )
        text = random_text(random)
        logits = random.normal(size=40).astype(np.float32)
        numbers = [
            options.dry_multiplier, options.dry_base, options.dry_allowed_length,
            options.dry_penalty_last_n,
        ]  # fmt: skip
        case = {"samplers": [["dry", *numbers, breakers]], "text": text, "logits": as_json(logits)}
        requests.append(case)
        cases.append((options, logits, text, breakers_by_text[seed % len(texts)]))
    penalized = 0
    for case, theirs in zip(cases, ask("sample", vocabulary, requests, tmp_path), strict=True):
        options, logits, text, breakers = case
        penalized += bool(Repetitions(options, breakers, text).penalties())
        assert_same(distribution(options, logits, None, text, breakers), theirs, case[:3])
    assert penalized > 20  # else the cases would prove little


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_llama_cpps_tokens_at_every_step(vocabulary, tmp_path, version):
    pytest.importorskip("xllamacpp")
    cases = []
    requests = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        options = Request(
            mirostat=version,
            mirostat_tau=float(random.uniform(0.5, 6)),
            mirostat_eta=float(random.uniform(0.05, 0.9)),
        )
        temperature = float(random.uniform(0.3, 1.5))
        size = int(random.integers(3, 300))
        steps = [(random.normal(size=size) * 3).astype(np.float32) for _ in range(12)]
        # Name, seed, tau and eta; version 1 also has the vocabulary's size, and takes the exponent
        # from a hundred tokens.
        mirostat = ["mirostat_v2", 1, options.mirostat_tau, options.mirostat_eta]
        if version == 1:
            mirostat = ["mirostat", size, 1, options.mirostat_tau, options.mirostat_eta, 100]
        samplers = [["temp", temperature], mirostat]
        requests.append({"samplers": samplers, "steps": [as_json(row) for row in steps]})
        cases.append((options, temperature, steps))
    lengths = set()
    for case, theirs in zip(cases, ask("follow", vocabulary, requests, tmp_path), strict=True):
        options, temperature, steps = case
        size = len(steps[0])
        drawn = 0.0
        ours = chain(options, {"temperature": temperature}, draw=lambda: drawn)  # noqa: B023
        for logits, (their_ids, chosen) in zip(steps, theirs, strict=True):
            tokens = Candidates(np.arange(size), logits.astype(np.float64))
            our_tokens = ours.filter(tokens, size)
            assert sorted(our_tokens.ids.tolist()) == their_ids
            lengths.add(len(their_ids))
            # Draw the middle of the token that llama.cpp chose, so that the next bound is the same.
            at = our_tokens.ids.tolist().index(chosen)
            before = float(our_tokens.probabilities()[:at].sum())
            drawn = before + float(our_tokens.probabilities()[at]) / 2
            assert ours.choose(tokens, size) == chosen
    assert len(lengths) > 20  # the bound on the surprise did move


@given(st.text("ab", max_size=90).map(lambda text: [ord(letter) for letter in text]))
def test_repetitions_of_a_prompt_are_those_of_its_tokens_added_one_by_one(prompt):
    options = Request(dry_multiplier=1.0, dry_penalty_last_n=-1)
    whole = Repetitions(options, {}, prompt)
    added = Repetitions(options, {}, [])
    for token in prompt:
        added.add(token)
    for token in (ord("a"), ord("b")):
        assert whole.penalties() == added.penalties()
        whole.add(token)
        added.add(token)


def test_a_long_prompt_is_searched_in_linear_time():
    prompt = [1, 2] * 150_000  # if each token is compared with all before it, this takes minutes
    repetitions = Repetitions(Request(dry_multiplier=1.0, dry_penalty_last_n=-1), {}, prompt)
    assert set(repetitions.penalties()) == {1}
