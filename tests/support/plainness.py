"""Measures of how easy the code is to read. They are printed, and never fail a test."""

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Plainness:
    """Counts over the files of a package."""

    tokens: int = 0
    lines_of_code: int = 0
    public: int = 0  # public modules, classes and functions
    documented: int = 0  # those of them that have a docstring
    docstring_lines: int = 0
    packed_assignments: int = 0  # of several values, neither unpacked nor swapped
    conditional_loops: int = 0

    def rows(self):
        """Lines to print: a number and its meaning."""
        yield f"{self.tokens / max(1, self.lines_of_code):.2f} tokens per line of code"
        yield f"{self.documented} of {self.public} public names have a docstring"
        yield f"{self.docstring_lines} lines of docstrings"
        yield f"{self.packed_assignments} assignments of several values that are not a swap"
        yield f"{self.conditional_loops} loops over a conditional expression"


def measure(package: Path) -> Plainness:
    """Numbers of all Python files below *package*."""
    total = Plainness()
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        _count_tokens(source, total)
        tree = ast.parse(source)
        _count_docstrings(tree, total)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_packed(node):
                total.packed_assignments += 1
            if isinstance(node, ast.For) and isinstance(node.iter, ast.IfExp):
                total.conditional_loops += 1
    return total


def _count_tokens(source, total):
    """Add the tokens and lines of code of *source* to *total*."""
    rows = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            total.tokens += 1
            rows.add(token.start[0])
    total.lines_of_code += len(rows)


def _count_docstrings(tree, total):
    """Add the public names and docstrings of *tree* to *total*."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            total.docstring_lines += text.count("\n") + 1
        if not getattr(node, "name", "").startswith("_"):
            total.public += 1
            total.documented += text is not None


def _is_packed(node):
    """True for ``a, b = x, y`` that does not exchange the same values."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    names = {ast.unparse(each) for each in target.elts}
    values = {ast.unparse(each) for each in node.value.elts}
    return names != values
