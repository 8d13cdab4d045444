"""Check the verdict of ``crossval``: the right graph passes, and small mistakes in it fail."""

from contextlib import ExitStack
from dataclasses import replace

from mistakes import LEAST_EPSILON, scaled_up, with_epsilon
from mutants import mutated, rotated

from bitnet import load
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.judge import judge
from bitnet.crossval.run import cross_validate
from bitnet.formats.containers import open_checkpoint

# So many positions, since the bounds are on means, and those of fewer positions vary too much.
TEXTS = (
    "abcdefghijklmnopqrstuvwabcdefghijklmnopqrstuvw",
    "zyxwvutsrqponmlkjihgfedcbazyxwvutsrqponml",
)
OPTIONS = CrossvalOptions(greedy=0, max_positions=80)
CONFIGURATIONS = {
    "every epsilon x100": lambda config: with_epsilon(config, 100),
    "theta x1.3": lambda config: rotated(
        config, lambda rope: replace(rope, theta=rope.theta * 1.3)
    ),
}


def scale_up(weight):
    """*weight*, of F32, times 1.01."""
    values = scaled_up(weight.data.view("<f4")).astype("<f4")
    return replace(weight, data=values.view("uint8"))


def wrong_last_norm(checkpoint):
    """A mistake in the last norm of *checkpoint* that has weights, by name; empty without one."""
    norms = [name for name in checkpoint.weights if name.endswith("norm.weight")]
    return {"one norm x1.01": (norms[-1], scale_up)} if norms else {}


def cache_answers(reference):
    """*reference*, run once for each question: a mistake in our model does not affect it."""
    for name in ("trace", "intermediates"):
        answers = {}

        def ask(question, *exact, method=getattr(reference, name), answers=answers):
            key = question.prompts, question.texts
            if key not in answers:
                answers[key] = method(question, *exact)
            return answers[key]

        setattr(reference, name, ask)
    return reference


def check_verdicts(path, reference):
    """Assert that the model at *path* passes beside *reference*, and fails with each mistake."""
    checkpoint = open_checkpoint(path)
    weights = wrong_last_norm(checkpoint)
    reference = cache_answers(reference)
    statuses = {}
    for mistake in ("", *CONFIGURATIONS, *weights):
        with ExitStack() as stack:
            stack.enter_context(mutated(mistake, CONFIGURATIONS, weights))
            model = stack.enter_context(load(path))
            config = model.model.config
            if mistake == "theta x1.3" and not config.ropes:
                continue
            if mistake == "every epsilon x100" and config.norm_eps < LEAST_EPSILON:
                continue
            evidence, _ = cross_validate(model, checkpoint, reference, OPTIONS, texts=TEXTS)
        verdict = judge(evidence)
        statuses[mistake] = verdict.status
        if not mistake:
            assert verdict.status == "passed", "; ".join(verdict.reasons)
    passed = [mistake for mistake, status in statuses.items() if mistake and status != "failed"]
    assert passed == []
