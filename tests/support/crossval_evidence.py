"""Evidence of a cross-validation that passes, for tests that change one thing about it."""

from dataclasses import replace

from bitnet.crossval.answers import KINDS, Answered
from bitnet.crossval.compare import Greedy, Nearness, Row, TokenizerParity, compare
from bitnet.crossval.evidence import (
    Evidence,
    OurEngine,
    Plan,
    Prompt,
    ReferenceFacts,
    TestedModel,
)
from bitnet.crossval.exact import Float64Pass
from bitnet.crossval.judge import judge
from bitnet.crossval.operations import Operation, Operations

NEAR = Nearness(1e-3, 1.0, 0.05)
ROW = Row(0, 0, 1, 1, 3.0, 1e-3, 2.0, 2.0, 1, 2.0, NEAR, NEAR)
STEPS = (Operation("Qcur-0", "int8 product", 0.01, 1e-4), Operation("l_out-0", "sum", 1e-7, 0.0))
OPERATIONS = Operations("bitnet", 2, 1, STEPS)
PARITY = TokenizerParity(3, 3, decoded=2, decoded_equal=2)


def answer(side, positions, steps=0, texts=0):
    counts = dict(zip(KINDS, (1, positions, steps, texts), strict=True))
    return Answered(side, counts, dict(counts))


def evidence(*rows, greedy=(), parity=PARITY, **changes):
    """One prompt with a position for each of *rows*, all of it asked and answered."""
    rows = tuple(replace(row, position=at) for at, row in enumerate(rows))
    steps = sum(one.steps for one in greedy)
    made = Evidence(
        schema_version=5,
        created="2026-01-01T00:00:00+00:00",
        plan=Plan(("p",), 256, 1, len(rows), len(rows), steps, len(greedy), 3),
        compute_path="real",
        model=TestedModel("m.gguf", "ab" * 32, "llama", tokenizer="m.gguf", vocab_size=64),
        ours=OurEngine(
            "bitnet", "1", "native (scalar)", "int8", {"linear/Q8_0/scalar": 9}, "ef" * 32
        ),
        reference=ReferenceFacts("llama.cpp", "answered", engine="e", arithmetic="int8"),
        machine={"system": "Linux", "processor": "x86_64"},
        answers=(
            answer("ours", len(rows), steps),
            answer("reference", len(rows), steps, 3),
            answer("float64", len(rows)),
        ),
        tokenizer_parity=parity,
        prompts=(Prompt("p", tuple(range(len(rows))), 0, ("t",) * len(rows)),),
        rows=rows,
        greedy=tuple(greedy),
        operations=(OPERATIONS,),
    )
    return replace(made, **changes)


PASSED = evidence(ROW, ROW, greedy=[Greedy(0, 8, 8)])


def exact_trace(checkpoint, prompts, greedy=0):
    """The float64 pass over *prompts*, each with a continuation of *greedy* steps."""
    return Float64Pass(checkpoint).trace(prompts, (), (greedy,) * len(prompts))


def verdict_on_float64(checkpoint, ids, theirs):
    """The verdict on the float64 pass itself by *theirs*."""
    exact = exact_trace(checkpoint, [("p", ids)])
    rows, _ = compare(exact, theirs, exact=exact)
    ours = replace(PASSED.ours, arithmetic="float")
    reference = replace(PASSED.reference, arithmetic=theirs.arithmetic)
    return judge(evidence(*rows, ours=ours, reference=reference))
