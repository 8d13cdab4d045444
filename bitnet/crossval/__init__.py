"""Cross-validation of this runtime with an independent engine.

``` text
plan ---> reference engine --+
     `--> our engine --------+--> evidence --> verdict --> report
     `--> float64 pass ------+
```

A plan says what is compared. Every engine is asked the same question; a foreign one runs in its
own process. Their answers become evidence: one record of numbers. The verdict follows from the
evidence alone, and the report shows both.

    crossval_options.py    what the command line asks for
    run.py                 from the plan to the evidence, step by step
    plan.py                the prompts, the texts to tokenize, and the facts known before
    trace.py               a question to an engine, and its answer
    references.py          the engines by name
    ask.py                 runs an engine in its own process, within a time limit
    reference_process.py   the program in that process
    llama_library.py       its engines with llama.cpp's C API
    transformers_engine.py its engine for models of transformers
    recording.py           a recorded answer, used instead of an engine
    ours.py                our own answer, and what computed it
    float64.py             the pass in double precision that both are measured by
    compare.py             compares answers: completeness, each text, each position
    operations.py          every operation, computed again from the engine's own inputs
    bounds.py              how far an operation may be from float64
    prefix.py              the caches that an operation reads, from the engine's own values
    names.py               our names for llama.cpp's intermediates
    modules.py             our names for inputs and outputs of transformers' modules
    evidence.py            all results as one record
    records.py             records as JSON, and back
    judge.py               the verdict, from that record alone, and its thresholds
    report.py              report.json, report.md and, by report.html.j2, report.html
    check.py               derives the verdict of a report again, and compares a second run with it
"""
