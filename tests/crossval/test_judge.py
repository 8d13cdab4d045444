"""Verdicts: every planned check ends as passed, failed or not run, and only all of them pass."""

from dataclasses import replace

import pytest
from crossval_evidence import PARTED, PASSED, ROW, STEPS, evidence

from bitnet.base.findings import Finding
from bitnet.crossval.bounds import NOT_GIVEN
from bitnet.crossval.evidence import TokenizerParity
from bitnet.crossval.judge import checks_of, judge
from bitnet.crossval.operations import Operation, describe, missing_operations


def outcome(found):
    """Status of the verdict on the evidence *found*, and severity of each check by its name."""
    verdict = judge(found)
    return verdict.status, {check.subject: check.severity for check in verdict.findings}


def failed_checks(found):
    """Names of the checks that fail; the verdict on the evidence *found* has to be failed."""
    status, findings = outcome(found)
    assert status == "failed"
    return {name for name, severity in findings.items() if severity == "failed"}


def test_equal_engines_pass_and_every_planned_check_is_shown():
    verdict = judge(PASSED)
    assert (verdict.status, verdict.reasons) == ("passed", [])
    assert [check.subject for check in verdict.findings] == list(checks_of(PASSED))
    assert len(checks_of(PASSED)) == 9  # all but the one of files that have a known digest


@pytest.mark.parametrize("name", ["ours", "reference", "float64"])
def test_a_side_that_is_not_there_or_not_whole_fails(name):
    faults = {side: () for side in PASSED.faults if side != name}
    assert failed_checks(replace(PASSED, faults=faults)) == {"answers"}
    short = replace(PASSED, faults=faults | {name: ("a continuation of 7 tokens",)})
    assert failed_checks(short) == {"answers"}
    assert f"answers: {name}: a continuation of 7 tokens" in judge(short).reasons


def test_rows_and_continuations_that_were_left_out_fail():
    assert failed_checks(replace(PASSED, rows=PASSED.rows[:1])) == {"answers"}
    assert failed_checks(replace(PASSED, greedy=())) == {"answers", "greedy"}
    without = failed_checks(replace(PASSED, rows=()))
    assert without == {"answers", "reference", "logits", "top-1", "float64"}
    assert "answers" in failed_checks(evidence())


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        ({"kl": None}, {"logits"}),
        ({"gap": None, "ours": 2}, {"top-1"}),
        ({"ours": None}, {"top-1"}),
        ({"ours_kl": None}, {"float64"}),
    ],
)
def test_a_number_that_is_missing_fails(change, checks):
    rows = (PASSED.rows[0], replace(PASSED.rows[1], **change))
    assert failed_checks(replace(PASSED, rows=rows)) == checks


@pytest.mark.parametrize(("side", "check"), [("ours", "float64"), ("theirs", "reference")])
def test_a_slope_may_be_missing_in_some_rows_but_not_in_all(side, check):
    without = [replace(row, **{f"{side}_scale": None}) for row in PASSED.rows]
    status, _ = outcome(replace(PASSED, rows=(PASSED.rows[0], *without[1:])))
    assert status == "passed"
    assert failed_checks(replace(PASSED, rows=tuple(without))) == {check}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kl": 0.02}, "logits: mean KL 2.0e-02"),
        ({"kl": 0.5}, "worst position 5.0e-01"),
        ({"ours": 2}, "top-1: 0 of 1"),
    ],
)
def test_a_difference_beyond_the_noise_fails(change, reason):
    verdict = judge(evidence(replace(ROW, **change)))
    assert verdict.status == "failed"
    assert reason in verdict.reasons[0]


def test_one_bad_position_among_many_fails_though_the_mean_is_fine():
    """A single position has a bound of its own, beside that of the mean."""
    rows = [replace(ROW, kl=1e-5)] * 999
    assert judge(evidence(*rows)).status == "passed"
    assert failed_checks(evidence(*rows, replace(ROW, kl=0.6))) == {"logits"}


def test_near_ties_do_not_count_and_what_float64_decides_for_us_is_counted():
    # Two tokens whose logits in the reference differ by 0.1: rounding may choose either.
    tie = judge(evidence(replace(ROW, ours=2, gap=0.1)))
    assert (tie.status, tie.excused) == ("passed", 0)
    excused = judge(evidence(replace(ROW, ours=2, exact=2), greedy=[replace(PARTED, exact=5)]))
    assert (excused.status, excused.excused) == ("passed", 2)
    # One of the positions, and one of the continuations.
    assert "1 are excused" in str(excused.findings)
    assert failed_checks(evidence(ROW, greedy=[PARTED])) == {"greedy"}
    assert failed_checks(evidence(ROW, greedy=[replace(PARTED, exact=6)])) == {"greedy"}
    assert failed_checks(evidence(ROW, greedy=[replace(PARTED, gap=None)])) == {"greedy"}
    assert judge(evidence(ROW, greedy=[replace(PARTED, gap=0.1)])).status == "passed"


def test_a_recording_is_judged_by_itself():
    """The float64 pass over a damaged file would excuse what the damage changed."""
    sha256 = PASSED.model.sha256
    plan = evidence().plan
    recorded = replace(plan, against="recorded", float64=False, recorded_sha256=sha256)
    row = replace(ROW, exact=None, ours_kl=None, theirs_kl=None)
    alike = evidence(row, plan=recorded)
    assert outcome(alike)[0] == "passed"
    assert not {"float64", "reference"} & set(checks_of(alike))
    assert failed_checks(evidence(replace(row, ours=2), plan=recorded)) == {"top-1"}
    other = replace(recorded, recorded_sha256="00" * 32)
    assert failed_checks(evidence(row, plan=other)) == {"model"}


def test_another_tokenizer_fails_and_the_text_is_shown():
    parity = TokenizerParity(3, 2, text="ab", ours=(1, 2), theirs=(3,))
    verdict = judge(evidence(ROW, parity=parity))
    assert verdict.status == "failed"
    assert "'ab': ours [1, 2], the reference's [3]" in verdict.reasons[0]
    assert failed_checks(evidence(ROW, parity=TokenizerParity(0, 0))) == {"tokenizer"}
    assert failed_checks(evidence(ROW, parity=TokenizerParity(3, 0))) == {"tokenizer"}


def test_another_text_of_the_same_ids_fails_and_the_ids_are_shown():
    parity = TokenizerParity(3, 3, decoded=2, decoded_equal=1, ids=(7, 9))
    verdict = judge(evidence(ROW, parity=parity))
    assert (verdict.status, failed_checks(evidence(ROW, parity=parity))) == (
        "failed",
        {"tokenizer"},
    )
    assert "1 of 2 lists of ids the same text; first ids of another text: [7, 9]" in str(verdict)
    assert failed_checks(evidence(ROW, parity=replace(parity, decoded_equal=2))) == {"tokenizer"}


def test_a_reference_without_a_tokenizer_leaves_a_check_not_run():
    verdict = judge(evidence(ROW, parity=None))
    assert (verdict.status, verdict.reasons) == (
        "not run",
        ["tokenizer: the reference has no tokenizer"],
    )


def test_ours_being_far_from_float64_fails_even_beside_a_worse_reference():
    row = replace(ROW, ours_kl=0.03)
    assert failed_checks(evidence(row)) == {"float64"}


SIDES = ("theirs", "ours")


# Beyond the bounds of an int8 engine: on the mean KL from the float64 pass, and on the slope.
@pytest.mark.parametrize("change", [{"kl": 0.016}, {"scale": 1.06}, {"scale": 0.94}])
def test_a_reference_is_held_to_the_bounds_that_we_are_held_to(change):
    theirs, ours = ({f"{side}_{name}": value for name, value in change.items()} for side in SIDES)
    wrong = evidence(replace(ROW, **theirs))
    assert "reference" in failed_checks(wrong)
    assert "it computes wrong logits, or we read the model wrong" in judge(wrong).reasons[0]
    assert failed_checks(evidence(replace(ROW, **ours))) == {"float64"}
    # Our own float64 pass does not judge itself.
    own = replace(evidence().plan, against="float64")
    assert outcome(evidence(ROW, plan=own))[0] == "passed"


@pytest.mark.parametrize(("severity", "status"), [("skipped", "not run"), ("failed", "failed")])
def test_a_reference_that_is_not_installed_is_not_run_and_one_that_fails_fails(severity, status):
    why = Finding(severity, "reference", "why", "what helps")
    verdict = judge(replace(PASSED, no_answer=why, rows=(), faults={}, greedy=()))
    assert (verdict.status, len(verdict.findings), verdict.hint) == (status, 9, "what helps")
    assert "ok" not in {check.severity for check in verdict.findings}


def test_the_hint_is_that_of_a_reason_of_the_verdict():
    mock = replace(PASSED, compute_path="mock")  # skipped, with a hint
    assert judge(mock).hint == "leave --allow-mock out"
    both = judge(replace(mock, greedy=()))  # and a check that failed, without a hint
    assert (both.status, both.hint) == ("failed", "")


def test_a_mock_tokenizer_makes_no_verdict():
    assert outcome(replace(PASSED, compute_path="mock"))[0] == "not run"


def test_without_counted_kernels_the_compute_path_fails():
    assert failed_checks(replace(PASSED, kernels={})) == {"compute path"}
    assert failed_checks(replace(PASSED, compute_path="none")) == {"compute path"}


def test_require_real_takes_the_compiled_kernels_only():
    plan = replace(PASSED.plan, require_real=True)
    assert outcome(replace(PASSED, plan=plan))[0] == "passed"
    assert failed_checks(replace(PASSED, plan=plan, compute_path="reference")) == {"compute path"}


# Beyond 1e-6, the bound of a sum such as STEPS[1].
@pytest.mark.parametrize("error", [2e-6, float("nan"), float("inf")])
def test_an_operation_beyond_its_bound_fails_on_either_side(error):
    wrong = (STEPS[0], replace(STEPS[1], error=error))
    theirs = replace(PASSED, operations={"bitnet": STEPS, "llama.cpp": wrong})
    assert failed_checks(replace(PASSED, operations={"bitnet": wrong})) == {"operations"}
    assert failed_checks(theirs) == {"operations"}
    assert "l_out-0 of llama.cpp differs from float64" in str(judge(theirs).reasons)


def test_a_product_that_stretches_fails_though_its_scatter_would_hide_it():
    """Values 2 % too small are within the error of int8, and are seen in the gain."""
    wrong = (replace(STEPS[0], gain=-0.02), STEPS[1])
    assert failed_checks(replace(PASSED, operations={"bitnet": wrong})) == {"operations"}


@pytest.mark.parametrize(
    "operations",
    [
        {},
        {"bitnet": ()},
        {"bitnet": STEPS[:1]},
        {"llama.cpp": STEPS},
        {"bitnet": (*STEPS, Operation("Kcur-0", "sum", NOT_GIVEN, 0.0, 0.0))},
    ],
)
def test_operations_that_were_not_compared_fail(operations):
    assert failed_checks(replace(PASSED, operations=operations)) == {"operations"}
    deeper = replace(PASSED, model=replace(PASSED.model, layers=2))
    assert failed_checks(deeper) == {"operations"}
    assert "gave 2 intermediates, and no l_out-1" in str(judge(deeper).reasons)


# Operations of a graph: an engine has to give one name of each group.
PLANNED = (("embed",), ("attn_norm-0", "Qcur-0"), ("l_out-0",), ("result_norm",))


def test_a_sum_that_an_engine_does_not_name_is_shown_by_the_norm_behind_it():
    names = ("attn_norm-0", "Qcur-0", "result_norm")
    steps = tuple(replace(STEPS[1], name=name) for name in names)
    assert missing_operations(steps, PLANNED, all_of_them=False) == ()
    assert describe("engine", steps, 1)[0]
    (missing,) = missing_operations(steps[:2], PLANNED[:3], all_of_them=False)
    assert missing.name == "l_out-0"
    is_right, text = describe("engine", steps[:2], 1)
    assert not is_right
    assert text == "engine gave 2 intermediates, and no l_out-0"
    ours = missing_operations(steps, PLANNED, all_of_them=True)
    assert [step.name for step in ours] == ["embed", "l_out-0"]


def test_a_file_that_bears_the_name_of_another_fails():
    model = replace(PASSED.model, problem="2 tensors differ from smollm2-135m")
    assert failed_checks(replace(PASSED, model=model)) == {"model"}
