"""Loops over products of the compiled module keep their sums in registers.

GCC keeps an array of sums in memory as soon as it loses sight of one element's index: every product
then loads and stores its sum, at a third of the speed and with the same bits, so no other test sees
it.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest

from bitnet.base import native

OBJDUMP = shutil.which("objdump")
# Instructions of Intel's syntax: sums of products, stores of a vector, jumps, and a line's address.
PRODUCT = re.compile(r"vpdp(?:wssd|busd) ")
STORE = re.compile(r"vmov\w+ +[XYZ]MMWORD PTR \[")
JUMP = re.compile(r"j\w+ +([0-9a-f]+)")
LINE = re.compile(r"^ *([0-9a-f]+):\t(.*)", re.MULTILINE)
WITHOUT_PRODUCTS = {"scalar", "avx2"}  # levels without such instructions
FEWEST_PRODUCTS = 4  # of a loop that is examined
MOST_FOR_PRODUCT = 5  # instructions for each product; a loop with more does other work as well
LOOPS = 40  # the module has more such loops; with fewer, this test would not recognize them


def loops_of(listing):
    """Yield the instructions of each short loop in *listing*, the disassembly of a module."""
    lines = [(int(address, 16), text) for address, text in LINE.findall(listing)]
    places = {address: place for place, (address, _) in enumerate(lines)}
    for place, (_, text) in enumerate(lines):
        jump = JUMP.match(text)
        start = places.get(int(jump[1], 16)) if jump else None
        if start is not None and 0 < place - start < 32 * MOST_FOR_PRODUCT:
            yield [instruction for _, instruction in lines[start : place + 1]]


def product_loops(listing):
    """Yield ``(products, stores)`` of each loop that does little besides adding products."""
    for loop in loops_of(listing):
        products = sum(bool(PRODUCT.match(text)) for text in loop)
        if products >= FEWEST_PRODUCTS and len(loop) <= MOST_FOR_PRODUCT * products:
            yield products, sum(bool(STORE.match(text)) for text in loop)


def test_loops_of_products_keep_their_sums_in_registers():
    module = native.module()
    if module is None:
        pytest.skip("the compiled module is not installed or switched off")
    if OBJDUMP is None or platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("needs objdump (binutils) and a module for Linux on x86-64")
    if set(module.kernel_levels()) <= WITHOUT_PRODUCTS:
        pytest.skip("the module has no level whose processors have these instructions")
    command = [OBJDUMP, "-d", "-M", "intel", "--no-show-raw-insn", module.__file__]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loops = list(product_loops(listing))
    assert len(loops) >= LOOPS
    # A loop whose sums are in memory has a store for each product; half of that is too much.
    assert [loop for loop in loops if 2 * loop[1] >= loop[0]] == []


def test_a_loop_that_stores_its_sums_is_found():
    body = [f"vpdpwssd zmm{n},zmm20,DWORD PTR [rax+0x{n:x}]{{1to16}}" for n in range(4)]
    stores = [f"vmovdqa64 ZMMWORD PTR [rsp+0x{64 * n:x}],zmm{n}" for n in range(4)]
    for inner, expected in ((body, (4, 0)), ([*body, *stores], (4, 4))):
        code = ["mov    rax,rdi", *inner, "add    rax,0x40", "jne    4"]
        listing = "\n".join(f"  {4 * place:x}:\t{text}" for place, text in enumerate(code))
        assert list(product_loops(listing)) == [expected]
