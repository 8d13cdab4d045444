"""Cross-validation of this runtime with an independent engine: traces, comparison, report.

    reference.py           requests to an engine, recordings, the float64 pass as an engine
    references.py          the reference engines, by name
    reference_process.py   the program that runs one of them, in its own process
llama_api.py           the C API of llama.cpp, for that program
    trace.py               an engine's answers to some prompts: best tokens, not whole vocabularies
    exact.py               the same in float64, against which both sides are measured
    asking.py              the prompts for both sides, and our answers
    answers.py             requested and received answers, counted
    compare.py             comparison of two traces; pure functions
    bounds.py              thresholds of agreement, and their origin
    operations.py          every operation, computed again from the engine's own inputs
receipt.py             the compute path, as counted inside the backend
    evidence.py            all results, as one record
    judge.py               the verdict, from that record alone
    run.py                 all of it, in order
    report.py              report.json, report.md and, by report.html.j2, report.html
    check.py               checks a report against its own rows, and against a new one
    records.py             records to JSON and back, strictly
"""
