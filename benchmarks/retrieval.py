"""Quality of retrieval with an encoder in several encodings, on this project's documentation.

    python benchmarks/retrieval.py MODEL [MODEL ...] [--table FILE]

A query is the title of a page and the heading of a section; a document is the text of a section
without its heading. For each model the table has the share of queries whose section is the first,
and among the first ten, the mean reciprocal rank, and the smallest cosine between a vector and that
of the first model.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

import bitnet

SHORTEST = 80  # characters of a section; shorter ones say little
TOKENS = 512  # of a text, the most that BERT reads; the rest of a section is left out


def sections():
    """Queries and documents, one of each for every section of the pages in ``docs``."""
    queries = []
    documents = []
    for page in sorted(Path(__file__).parents[1].glob("docs/**/*.md")):
        text = re.sub(r"```.*?```", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        title, *parts = re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
        for part in parts:
            heading, _, body = part.partition("\n")
            body = " ".join(body.split())
            # Tables, which begin with "|", are left out.
            if len(body) >= SHORTEST and not body.startswith("|"):
                queries.append(f"{title.partition(chr(10))[0]}: {heading}")
                documents.append(body)
    return queries, documents


def places(queries, documents):
    """Rank, from 1, of the right document for each query, which has the same row number.

    Both are vectors of length one, ``(N, dim)``.
    """
    scores = queries @ documents.T
    right = np.diag(scores)[:, None]
    return 1 + (scores > right).sum(axis=1)


def main():
    """Embed the sections with every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    queries, documents = sections()
    lines = [
        f"{len(queries)} sections.",
        "",
        "| model | first | among the first ten | mean of 1/place | smallest cosine |",
        "|---|---|---|---|---|",
    ]
    reference = None
    for path in options.models:
        with bitnet.load(path) as model:
            model.text_limit = TOKENS
            vectors = model.embed([*queries, *documents])
        reference = vectors if reference is None else reference
        ranks = places(vectors[: len(queries)], vectors[len(queries) :])
        cosine = (vectors * reference).sum(axis=1).min()
        row = f"{(ranks == 1).mean():.3f} | {(ranks <= 10).mean():.3f} | {(1 / ranks).mean():.4f}"
        lines.append(f"| {path.name} | {row} | {cosine:.5f} |")
    text = "\n".join(lines) + "\n"
    if options.table:
        options.table.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
