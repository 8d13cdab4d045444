"""``inv doctor``."""

from __future__ import annotations

from invoke.exceptions import Exit

from bitnet import settings
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Check",
    example="bitnet doctor",
    positional=["area", "model"],
    choices={"area": ("network",)},
    help={
        "area": "'network' also follows the way to the hub step by step",
        "report": "print a block of Markdown for a bug report",
        "model": "GGUF file, folder with config.json, or model name to describe; else BITNET_GGUF",
    },
    metavars={"model": "PATH|NAME"},
    checks_settings=False,
)
def doctor(
    c,
    area="",
    report=False,
    model="",
    common=Context(),
):
    """Say what is wrong here, and what to do about it.

    Ends in one sentence. The exit code is that of the first thing that is wrong, 0 when nothing
    is. Secrets are never shown.
    """
    from bitnet.doctor import examine, markdown, verdict

    named = model or settings.gguf()
    findings = examine(common.cache.root, common.model(named) if named else None)
    if area:
        from bitnet.hub.diagnose import diagnose

        findings += diagnose(common.fetch)
    if common.output.json:
        facts = [finding.facts() for finding in findings]
        print(as_json({"findings": facts, "verdict": verdict(findings)}))
    else:
        if report:
            print(markdown(findings))
        else:
            show(*map(str, findings), verdict(findings))
    wrong = next((finding for finding in findings if finding.failed), None)
    if wrong is not None:
        raise Exit(code=wrong.exit_code)
