"""Measure what a tree of drafts would gain over the longest match, if its rows were free.

    python benchmarks/draft_trees.py MODEL --prose FILE.xz [--tokens 256] [--branches 1,2,4,8]

MODEL continues code (files of this package), tables (results of benchmarks) and prose greedily.
Then the answers are replayed: a pass yields the tokens that the best of N drafts has right, and one
more. The drafts are the continuations of the N best matches in the text so far that begin with
different tokens. Only passes are counted, so this is an upper bound: in a real pass every branch
adds rows, with keys and values of its own. The last column is the measured speedup of one branch,
as processor time of one thread, including the prompt.
"""

from __future__ import annotations

import argparse
import lzma
import time
from pathlib import Path

import numpy as np

from bitnet import load
from bitnet.runtime.request import Request
from bitnet.runtime.sampling import MOST_MATCHES, SHORTEST_MATCH, Sampler, _agreement

ROOT = Path(__file__).parent.parent
MOST = 15  # tokens of a draft
BEGINNING = 400  # tokens of a text before the answer
TEXTS = 6  # of each kind


class Branches(Sampler):
    """A sampler that can draft several continuations, which begin with different tokens."""

    def drafts(self, ids, count):
        """Up to *count* drafts after *ids*, the whole text so far; the best match first."""
        first = self.draft(ids, MOST)
        if not first:
            return []
        draft_by_token = {first[0]: first}
        ends = self._ends.get(tuple(ids[-SHORTEST_MATCH:]), [])[-MOST_MATCHES:]
        for end in sorted(ends, key=lambda end: (-_agreement(ids, end), -end)):
            if len(draft_by_token) < count and ids[end] not in draft_by_token:
                draft_by_token[ids[end]] = ids[end : end + len(first)]
        return list(draft_by_token.values())


def passes(prompt, answer, count):
    """Number of passes that *answer* takes after *prompt* with *count* branches."""
    sampler = Branches(Request(lookup=MOST))
    done = 0
    n_passes = 0
    while done < len(answer):
        text = prompt + answer[:done]
        remaining = answer[done:]
        drafts = sampler.drafts(text, count)
        accepted = 0
        for draft in drafts:
            same = 0
            # One token must remain for the pass itself, which always yields one.
            while same < min(len(draft), len(remaining) - 1) and draft[same] == remaining[same]:
                same += 1
            accepted = max(accepted, same)
        done += accepted + 1
        n_passes += 1
        if drafts:
            sampler.report(len(prompt) + done, drafted=len(drafts[0]), accepted=accepted)
    return n_passes


def beginnings(prose):
    """Yield each kind of text with TEXTS texts, of which prompts are the first tokens."""
    sources = sorted((ROOT / "bitnet").rglob("*.py"), key=lambda path: -path.stat().st_size)
    # Without their beginnings, mostly docstrings and imports.
    yield "code", [path.read_text(encoding="utf-8")[2000:] for path in sources[:TEXTS]]
    results = sorted((ROOT / "benchmarks/results").glob("*.md"), key=lambda p: -p.stat().st_size)
    tables = [path.read_text(encoding="utf-8") for path in results[:TEXTS]]
    yield "tables", [text[text.index("\n|") + 1 :] for text in tables if "\n|" in text]
    book = lzma.decompress(prose.read_bytes()).decode("utf-8")
    yield "prose", [book[10_000 * at :][:6000] for at in range(1, TEXTS + 1)]


def main():
    """Print the tokens per pass by kind of text and number of branches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--branches", default="1,2,4,8")
    options = parser.parse_args()
    branches = [int(count) for count in options.branches.split(",")]
    model = load(options.model, context=BEGINNING + options.tokens + 8, threads=1)
    print(f"| text | {' | '.join(f'{n} branches' for n in branches)} | speed with `--lookup` |")
    print("|---|" + "---|" * (len(branches) + 1))
    for kind, texts in beginnings(options.prose):
        tokens = 0
        counts = dict.fromkeys(branches, 0)
        seconds = np.zeros(2)
        for text in texts:
            prompt = list(model.tokenizer.encode(text))[:BEGINNING]
            keywords = {"max_tokens": options.tokens, "temperature": 0.0}
            started = time.process_time()
            continuation = model.generate(prompt, lookup=0, **keywords)
            between = time.process_time()
            drafted = model.generate(prompt, lookup=MOST, **keywords)
            seconds += np.array([between - started, time.process_time() - between])
            assert drafted == continuation
            # Without BOS, which no pass writes.
            answer = list(model.tokenizer.encode(continuation, add_special=False))
            tokens += len(answer)
            for count in branches:
                counts[count] += passes(prompt, answer, count)
        cells = [f"{tokens / counts[n]:.2f}" for n in branches]
        print(f"| {kind} | {' | '.join(cells)} | {seconds[0] / seconds[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
