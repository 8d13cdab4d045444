"""Does this runtime agree with an independent engine? Traces, their comparison, a report.

references.py          the engines to compare with, by name
reference_process.py   the program that runs one of them, in a process of its own
llama_api.py           the C API of llama.cpp, for that program
trace.py               what an engine says about some prompts: best tokens, not whole vocabularies
exact.py               the same in float64, which is what both sides are measured against
compare.py             two traces side by side; pure functions
judge.py               the bounds, where they come from, and the verdict
bisect.py              the first layer and operation where two engines part
receipt.py             what really computed, as counted inside the backend
report.py              report.json, .md and .html
run.py                 all of it, in order
"""
