"""Agreement of this runtime with an independent engine: traces, their comparison, a report.

references.py          the engines to compare with, by name
reference_process.py   the program that runs one of them, in a process of its own
llama_api.py           the C API of llama.cpp, for that program
trace.py               what an engine says about some prompts: best tokens, not whole vocabularies
exact.py               the same in float64, which is what both sides are measured against
asking.py              what both sides are asked, and our answer
answers.py             asked and answered, counted
compare.py             two traces side by side; pure functions
bounds.py              what still counts as agreement, and where the figures come from
bisect.py              the first layer and operation where two engines part
intermediates.py       the intermediates it looks at
receipt.py             the compute path, as counted inside the backend
evidence.py            everything that was found out, as one record
judge.py               the verdict, from that record alone
run.py                 all of it, in order
report.py              report.json; report_text.py and report_html.py (with plots.py) show it,
                       report_files.py writes all three
check.py               a report held to its own rows, and rows computed again
records.py             records to JSON and back, strictly
"""
