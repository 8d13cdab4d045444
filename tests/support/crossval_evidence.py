"""Evidence of a cross-validation that passes, for tests that change one thing about it."""

from dataclasses import replace

from bitnet.crossval.compare import compare
from bitnet.crossval.evidence import Evidence, Plan, Row, TestedModel, TokenizerParity
from bitnet.crossval.float64 import Float64
from bitnet.crossval.judge import judge
from bitnet.crossval.operations import Operation
from bitnet.crossval.trace import EngineFacts, Prompt, Question

# Both engines, and the float64 pass, find token 1 the likeliest.
ROW = Row(
    prompt=0,
    position=0,
    ours=1,
    theirs=1,
    gap=3.0,
    kl=1e-3,
    nll=2.0,
    theirs_nll=2.0,
    exact=1,
    ours_kl=1e-3,
    ours_scale=1.0,
    theirs_kl=1e-3,
    theirs_scale=1.0,
)
# Name, kind, error, gain and mean residual of each.
STEPS = (
    Operation("Qcur-0", "int8 product", 0.01, 1e-4, 2e-3),
    Operation("l_out-0", "sum", 1e-7, 0.0, 2e-8),
)
PARITY = TokenizerParity(3, 3, decoded=2, decoded_equal=2)
# Prompt, step, our token, the reference's, and the gap to its second token.
WHOLE = Row(0, 7, 5, 5, 1.0)  # a continuation of eight steps that are all equal
PARTED = Row(0, 3, 5, 6, 2.0)  # a continuation whose tokens differ from step 3 on


def evidence(*rows, greedy=(), parity=PARITY, **changes):
    """One prompt with a position for each of *rows*, all of it asked and answered."""
    rows = tuple(replace(row, position=at) for at, row in enumerate(rows))
    count = len(rows)
    passing = Evidence(
        schema_version=9,
        created="2026-01-01T00:00:00+00:00",
        plan=Plan(
            against="llama.cpp",
            float64=True,
            asked=("p",),
            limit=256,
            greedy=8 if greedy else 0,
            texts=3,
        ),
        machine={"system": "Linux", "processor": "x86_64"},
        model=TestedModel("m.gguf", "ab" * 32, "llama", "m.gguf", vocab_size=64, layers=1),
        ours=EngineFacts("bitnet", "1", "int8", "module.so", "ef" * 32),
        backend="native (scalar)",
        reference=EngineFacts("llama.cpp"),
        compute_path="real",
        kernels={"linear/Q8_0/scalar": 9},
        faults={"ours": (), "reference": (), "float64": ()},
        tokenizer_parity=parity,
        prompts=(Prompt("p", tuple(range(count)), steps=8 if greedy else 0),),
        rows=rows,
        greedy=tuple(greedy),
        operations={"bitnet": STEPS},
    )
    return replace(passing, **changes)


PASSED = evidence(ROW, ROW, greedy=[WHOLE])


def exact_trace(checkpoint, prompts):
    """The float64 pass over *prompts*."""
    return Float64().trace(Question(checkpoint, tuple(prompts)))


def verdict_on_float64(checkpoint, ids, theirs):
    """The verdict on the float64 pass itself by *theirs*."""
    exact = exact_trace(checkpoint, [Prompt("p", ids)])
    rows, _ = compare(exact, theirs, exact=exact)
    ours = replace(PASSED.ours, arithmetic="float")
    return judge(evidence(*rows, ours=ours, reference=theirs.engine))
