"""Cross-validation of this runtime with an independent engine: traces, comparison, report.

    references.py          the reference engines, by name
    reference_process.py   the program that runs one of them, in its own process
llama_api.py           the C API of llama.cpp, for that program
    trace.py               an engine's answers to some prompts: best tokens, not whole vocabularies
    exact.py               the same in float64, against which both sides are measured
    asking.py              the prompts for both sides, and our answers
    answers.py             requested and received answers, counted
    compare.py             comparison of two traces; pure functions
    bounds.py              thresholds of agreement, and their origin
    bisect.py              the first layer and operation where two engines differ
intermediates.py       the intermediates it looks at
receipt.py             the compute path, as counted inside the backend
    evidence.py            all results, as one record
    judge.py               the verdict, from that record alone
    run.py                 all of it, in order
    report.py              report.json; report_text.py and report_html.py (with plots.py) show it,
                           report_files.py writes all three
    check.py               checks a report against its own rows, and computes rows again
    records.py             records to JSON and back, strictly
"""
