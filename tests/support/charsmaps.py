"""SentencePiece character maps, built by hand."""

import struct

_LEAF = 1 << 31
_HAS_LEAF = 1 << 8


def charsmap(entries):
    """The precompiled map that replaces every key by its value, both bytes.

    It is a double-array trie, in which every node has 256 units of its own; a real map packs them.
    A unit has the offset of its node from bit 10 on, and its byte in the lowest bits.
    """
    texts = b""
    places = {}
    for key, value in entries.items():
        places[key] = len(texts)
        texts += value + b"\0"
    nodes = sorted({key[:end] for key in entries for end in range(len(key) + 1)}, key=len)
    base = {node: 256 * (1 + n) for n, node in enumerate(nodes)}
    units = [0] * (256 * (1 + len(nodes)))
    units[0] = base[b""] << 10
    for node in nodes[1:]:
        at = base[node[:-1]] ^ node[-1]
        units[at] = (at ^ base[node]) << 10 | node[-1] | (_HAS_LEAF if node in entries else 0)
    for key, place in places.items():
        units[base[key]] = _LEAF | place
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts
