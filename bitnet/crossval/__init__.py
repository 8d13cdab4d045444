"""Cross-validation of this runtime with an independent engine.

``` text
question --> reference engine --> trace --+
        `--> our engine ------> trace --+--> rows --> evidence --> verdict, report
        `--> float64 pass ----> trace --+
```

    trace.py               prompts, an engine's answers to them, engines and recordings
    options.py             what the command line asks for
    references.py          the engines, by name; the float64 pass, which measures both sides
    reference_process.py   the program that runs one of them, in its own process; llama.cpp's C API
    operations.py          every operation, computed again from the engine's own inputs
    evidence.py            traces into rows, tokenizers text by text, and all results as one record
    judge.py               the verdict, from that record alone, and its thresholds
    run.py                 the prompts for both sides, our answers, faults of answers; all in order
    report.py              report.json, report.md and, by report.html.j2, report.html; checks of one
"""
