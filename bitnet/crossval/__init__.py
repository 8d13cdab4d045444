"""Cross-validation of this runtime with an independent engine.

``` text
question --> reference engine --> trace --+
        `--> our engine ------> trace --+--> rows --> evidence --> verdict, report
        `--> float64 pass ----> trace --+
```

    trace.py               prompts, and an engine's answers: best tokens, not whole vocabularies
    reference.py           a reference engine, the request to it, recordings
    references.py          the engines, by name
    reference_process.py   the program that runs one of them, in its own process
    llama_api.py           the C API of llama.cpp, for that program
    exact.py               the float64 pass, against which both sides are measured
    asking.py              the prompts for both sides, and our answers
    answers.py             faults of answers: missing, extra or invalid ones
    compare.py             traces into rows; pure functions
    tokens.py              tokenizers compared text by text
    operations.py          every operation, computed again from the engine's own inputs
    receipt.py             the compute path, as counted inside the backend
    evidence.py            all results, as one record
    bounds.py              thresholds of agreement, and their origin
    judge.py               the verdict, from that record alone
    run.py                 all of it, in order
    report.py              report.json, report.md and, by report.html.j2, report.html
    check.py               checks a report against its own rows, and against a new one
    records.py             records to JSON and back, strictly
"""
