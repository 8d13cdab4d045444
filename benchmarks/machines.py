"""Write the table of every machine that was measured beside other engines; add a machine.

    python benchmarks/machines.py [--add RESULTS --date DATE --build ENGINE=BUILD ...] [--keep]
        [--check]

RESULTS is the output of ``runtime.py --json`` on that machine; ``inv bench-peers`` runs both. The
rows are in ``results/machines.json``. This program writes ``results/machines.md`` from them, and
speed_plot.py the README's picture. New results replace the rows of the same machine; with --keep
the rates and builds that the results lack stay. Each machine has its date and the builds of its
peers: compare rates of one machine only, and ratios of several.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
RECORDS = RESULTS / "machines.json"
TABLE = RESULTS / "machines.md"
OURS = "bitnet"
TESTS = (
    *("pp128", "pp512", "pp4096", "pp512@4096", "pp512@16384", "pp512@32768"),
    *("tg32", "tg128", "tg32@128", "tg32@4096", "tg32@16384", "tg32@32768"),
)
KV_TYPES = {"f16": "16-bit keys and values", "q8": "8-bit keys and values"}
HEAD = """# Every machine beside other engines

Written by `benchmarks/machines.py` from `machines.json`. `inv bench-peers MODEL... --peers FOLDER`
adds the machine at hand ([how to build the peers](../../docs/how-to/peers.md)).

Tokens per second: a prompt of so many tokens (pp), so many new ones (tg), `@` behind so many. The
engines of a machine ran in turns, whose medians these are; compare rates of one machine only. In
brackets: how many of a row's measurements other processes disturbed in all tries. A row with
several numbers of turns has the fewest.
"""


def ratios(rows):
    """Yield the rows of each model and number of threads, and ours over the best peer by test.

    A ratio needs a rate of both. Peers that are lossy, such as with a head of four bits, do not
    count. Rows without one of ours have no ratios.
    """
    for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        group = [row for row in rows if (row["model"], row["threads"]) == (model, threads)]
        ours = next((row for row in group if row["engine"] == OURS), {})
        peers = [row for row in group if row is not ours and not row.get("lossy")]
        best = {
            test: max((row[test] for row in peers if row.get(test)), default=0) for test in TESTS
        }
        yield (
            group,
            {test: ours[test] / best[test] for test in TESTS if ours.get(test) and best[test]},
        )


def page(machines):
    """The page with a table for each of *machines*, in Markdown."""
    lines = [HEAD]
    for machine in machines:
        tests = [test for test in TESTS if any(row.get(test) for row in machine["rows"])]
        builds = ", ".join(f"{engine} {build}" for engine, build in machine["builds"].items())
        lines += [f"## {machine['machine']}", "", f"{machine['date']}; {builds}.", ""]
        lines += ["| model | threads | engine | " + " | ".join(tests) + " | turns |"]
        lines += ["|" + "---|" * (4 + len(tests))]
        for group, ratio in ratios(machine["rows"]):
            for row in group:
                cells = [f"{row[test]:,.0f}" if row.get(test) else "" for test in tests]
                cells.append(turns_of(row))
                name = f"{row['engine']} (lossy)" if row.get("lossy") else row["engine"]
                lines += [f"| {row['model']} | {row['threads']} | {name} | {' | '.join(cells)} |"]
            if ratio:
                cells = [f"{ratio[test]:.2f}" if test in ratio else "" for test in tests]
                lines += [f"| | | ours / best peer | {' | '.join(cells)} | |"]
        lines.append("")
    return "\n".join(lines)


def turns_of(row):
    """Cell of the number of turns of *row*, empty if that was not recorded.

    In brackets it has the number of disturbed measurements, if any.
    """
    if "turns" not in row:
        return ""
    return f"{row['turns']} ({row['busy']})" if row["busy"] else str(row["turns"])


def merge_rows(rows):
    """*rows* with those of the same model, number of threads and engine merged into one.

    A later row replaces the rates of an earlier one. The merged row has the smallest number of
    turns, and the sum of the disturbed measurements; it has neither if a rate that stays is of an
    earlier row without them.
    """
    by_name = {}
    for row in rows:
        name = row["model"], row["threads"], row["engine"]
        earlier = by_name.get(name, {})
        merged = earlier | row
        if "turns" in earlier and "turns" in row:
            merged["turns"] = min(earlier["turns"], row["turns"])
            merged["busy"] = earlier["busy"] + row["busy"]
        elif any(earlier.get(test) and test not in row for test in TESTS):
            merged.pop("turns", None)
            merged.pop("busy", None)
        by_name[name] = merged
    return list(by_name.values())


def split_kv_type(model, engine):
    """Names of *model* and *engine*; the form of keys and values, if any, moves to the first."""
    plain, _, kv_type = engine.rpartition(" ")
    return (f"{model}, {KV_TYPES[kv_type]}", plain) if kv_type in KV_TYPES else (model, engine)


def machine_entry(runs, date, builds):
    """The entry of the machine on which runtime.py measured *runs*."""
    machine = runs[0]["machine"]
    rows = [
        dict(zip(("model", "engine"), split_kv_type(model, engine), strict=True))
        | {"threads": int(threads), "busy": result.get("busy", 0)}
        | {"turns": min(len(per_turn) for per_turn in result["rates"].values())}
        | {test: round(statistics.median(rates), 1) for test, rates in result["rates"].items()}
        for facts in runs
        for model, by_threads in facts["results"].items()
        for threads, by_engine in by_threads.items()
        for engine, result in by_engine.items()
    ]
    name = f"{machine['cpu']} ({', '.join(machine['features'])}), {machine['cores']} cores"
    return {"machine": name, "date": date, "builds": builds, "rows": merge_rows(rows)}


def complete_entry(new, old):
    """The entry *new*, completed from *old*, the earlier entry of the same machine.

    :func:`merge_rows` says what a row of both has.
    """
    rows = merge_rows([*old["rows"], *new["rows"]])
    models = dict.fromkeys(row["model"] for row in rows)
    ordered = [row for model in models for row in rows if row["model"] == model]
    return new | {"builds": old["builds"] | new["builds"], "rows": ordered}


def main():
    """Add a machine, or check the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", type=Path, action="append", default=[])
    parser.add_argument("--date", default="")
    parser.add_argument("--build", action="append", default=[])
    parser.add_argument("--keep", action="store_true", help="keep rates that RESULTS lack")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    machines = json.loads(RECORDS.read_text(encoding="utf-8"))
    if options.add:
        if unnamed := [entry for entry in options.build if "=" not in entry]:
            parser.error(f"--build is {unnamed[0]}, expected ENGINE=BUILD")
        builds = dict(entry.split("=", 1) for entry in options.build)
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.add]
        new = machine_entry(runs, options.date, builds)
        old = next((each for each in machines if each["machine"] == new["machine"]), None)
        if options.keep and old:
            new = complete_entry(new, old)
        machines = [each for each in machines if each["machine"] != new["machine"]] + [new]
    table = page(machines)
    if options.check:
        if TABLE.read_text(encoding="utf-8") == table:
            return 0
        print("not current: benchmarks/results/machines.md; run: python benchmarks/machines.py")
        return 1
    # One row on each line.
    text = json.dumps(machines, indent=1).replace("\n    ", " ").replace("\n   }", " }")
    RECORDS.write_text(text + "\n", encoding="utf-8")
    TABLE.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
