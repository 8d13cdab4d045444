"""SentencePiece's own algorithms in plain Python: normalizer, BPE by score, Unigram.

Gives the results of the ``sentencepiece`` library (``normalizer.cc``, ``bpe_model.cc``,
``unigram_model.cc``), for machines without it and as the reference for the native engine.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections import defaultdict
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from bitnet.errors import InvalidFormat
from bitnet.tokenizer.added import AddedTokens
from bitnet.tokenizer.charsmap import CharsMap
from bitnet.tokenizer.limits import GROWTH, GROWTH_BASE, over_budget
from bitnet.tokenizer.offsets import moved
from bitnet.tokenizer.spec import SPACE_SYMBOL, AddedToken, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = ["SentencePiece"]

_UNKNOWN_PENALTY = 10.0
_FLOAT = struct.Struct("f")
_WINDOWS, _WINDOW = 4096, 64  # number of texts whose pieces are cached, and their length
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = map(int, TokenType)


def _float32(value: float) -> float:
    return float(_FLOAT.unpack(_FLOAT.pack(value))[0])


class SentencePiece:
    """Runs a specification of model ``spm`` or ``unigram`` that came from SentencePiece."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        types = spec.token_types or [_NORMAL] * len(spec.tokens)
        # Unknown, control and byte pieces never match text.
        self._pieces = {
            piece: id
            for id, (piece, kind) in enumerate(zip(spec.tokens, types, strict=False))
            if kind in (_NORMAL, _USER_DEFINED, _UNUSED) and piece
        }
        self._types = types
        # BPE never joins a user-defined piece with another one; Unigram only prefers it. The
        # normalizer leaves it unchanged in both.
        self._user = AddedTokens(spec.added, normalized=True)
        self._protected = self._user if spec.model == "spm" else _user_defined(spec)
        self._charsmap = CharsMap(spec.charsmap) if spec.charsmap else None
        self._bytes = _byte_ids(spec.tokens, types) if spec.byte_fallback else None
        if spec.model == "unigram":
            self._prepare_unigram()
        else:
            self._costs = {piece: -spec.scores[id] for piece, id in self._pieces.items()}
            self._unused = {piece for piece, id in self._pieces.items() if types[id] == _UNUSED}

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """Ids of *text*, which contains no added token of raw text.

        Args:
            text: text between such tokens.
            goes_on: it continues after a cut (:mod:`bitnet.tokenizer.cuts`).
        """
        return [id for id, *_ in self._encoded(self.normalize(text, prefix=not goes_on))]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Ids of *text*, each with the start and end of its characters."""
        normal, origin = self._aligned(text)
        return list(moved(self._encoded(normal), origin, 0))

    def _encoded(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Ids and characters of a normalized text."""
        if self._spec.model == "unigram":
            yield from self._with_unknown(self._best_path(text), 0)
            return
        for id, start, stop in self._user.cut(text):
            if id is not None:
                yield id, start, stop
            else:
                yield from self._with_unknown(self._merge(text[start:stop]), start)

    def normalize(self, text: str, *, prefix: bool = True) -> str:
        """*text* as the model receives it: replaced by the table, spaces as U+2581, with prefix."""
        return self._aligned(text, prefix=prefix)[0]

    def _aligned(self, text: str, *, prefix: bool = True) -> tuple[str, list[tuple[int, int]]]:
        """The normalized text, and the characters of *text* from which each of its own comes."""
        if not text:
            return "", []
        spec = self._spec
        chunks: Iterable[_Chunk] = (
            [_Chunk(text, 0, len(text), True)]
            if self._charsmap is None and not spec.remove_extra_whitespaces
            else self._chunks(text, self._charsmap)
        )
        if spec.remove_extra_whitespaces:
            chunks = _single_spaces(chunks)
        origin: list[tuple[int, int]] = []
        out: list[str] = []
        if spec.add_space_prefix and prefix:
            out.append(" ")
            origin.append((0, 0))  # comes from no character
        for chunk in chunks:
            out.append(chunk.text)
            if chunk.same:
                origin.extend((i, i + 1) for i in range(chunk.start, chunk.stop))
            else:
                origin.extend([(chunk.start, chunk.stop)] * len(chunk.text))
        text = "".join(out).replace(" ", SPACE_SYMBOL)
        if spec.remove_extra_whitespaces:
            text = text.rstrip(SPACE_SYMBOL)
        return text, origin

    def _chunks(self, text: str, table: CharsMap | None) -> list[_Chunk]:
        """The table's longest entries replaced, left to right; user-defined pieces untouched."""
        out: list[_Chunk] = []
        left = GROWTH_BASE + GROWTH * len(text.encode("utf-8", "replace"))
        for id, start, stop in self._protected.cut(text):
            if id is not None:
                kept = self._spec.tokens[id]
                out.append(_Chunk(kept, start, stop, len(kept) == stop - start))
                continue
            if table is None:
                out.extend(_Chunk(text[i], i, i + 1, True) for i in range(start, stop))
                continue
            data = text[start:stop].encode("utf-8", "replace")
            at, place = 0, start
            while at < len(data):
                found = table.longest(data, at)
                if found is not None and found[0] > 0:
                    replacement = table.replacement(found[1])
                    behind = place + len(data[at : at + found[0]].decode("utf-8", "replace"))
                    out.append(_Chunk(replacement, place, behind, False))
                    at += found[0]
                    place = behind
                    left -= len(replacement)
                    if left < 0:
                        raise over_budget(
                            self._spec.source, "a normalizer that makes the text too long"
                        )
                else:
                    width = _width(data[at])
                    out.append(_Chunk(data[at : at + width].decode(), place, place + 1, True))
                    at += width
                    place += 1
        return out

    def _with_unknown(self, pieces: list[str], start: int) -> list[tuple[int, int, int]]:
        """Ids of *pieces* and their characters, the first being *start*.

        Pieces without an id become bytes, or a run of them one unknown id.
        """
        found: list[tuple[int, int, int]] = []
        after_unknown = False
        for piece in pieces:
            id = self._pieces.get(piece)
            stop = start + len(piece)
            if id is not None:
                found.append((id, start, stop))
            elif self._bytes is not None:
                found.extend(
                    (self._bytes[byte], at, at + 1)
                    for at, character in enumerate(piece, start)
                    for byte in character.encode("utf-8", "replace")
                )
            elif self._spec.unknown_id is not None:
                begin = found.pop()[1] if after_unknown else start
                found.append((self._spec.unknown_id, begin, stop))
            after_unknown = id is None
            start = stop
        return found

    def _merge(self, text: str) -> list[str]:
        """Best-scored neighbours joined first, the left ones of equal score first."""
        size = len(text)
        symbols = list(text)
        before, after = list(range(-1, size)), list(range(1, size + 1))
        costs, unused = self._costs, self._unused
        halves: dict[str, tuple[str, str]] = {}
        if unused:
            for first, second in pairwise(text):
                if first + second in unused:
                    halves[first + second] = first, second
        # Cost of joining the symbol at a position with the next one; None: they do not join.
        cost_at = [*map(costs.get, map(add, text, text[1:])), None]
        places: defaultdict[float, list[int]] = defaultdict(list)
        for place, cost in enumerate(cost_at):
            if cost is not None:
                places[cost].append(place)
        waiting = list(places)
        heapq.heapify(waiting)
        while waiting:
            # All of equal cost, from the left; later pairs that cost no more come afterwards.
            bound = heapq.heappop(waiting)
            run = sorted(places.pop(bound), reverse=True)
            late: list[tuple[float, int]] = []
            while run or late:
                if late and not (run and (bound, run[-1]) <= late[0]):
                    cost, left = heapq.heappop(late)
                else:
                    cost, left = bound, run.pop()
                if cost_at[left] != cost:
                    continue  # joined already, it or the next one
                right = after[left]
                symbols[left] += symbols[right]
                symbols[right] = ""
                cost_at[left] = cost_at[right] = None
                behind = after[left] = after[right]
                before[behind] = left
                for one, other in ((before[left], left), (left, behind)):
                    if one < 0 or other == size:
                        continue
                    joined = symbols[one] + symbols[other]
                    found = cost_at[one] = costs.get(joined)
                    if found is None:
                        continue
                    if joined in unused:
                        halves.setdefault(joined, (symbols[one], symbols[other]))
                    if found <= bound:
                        heapq.heappush(late, (found, one))
                    else:
                        if found not in places:
                            heapq.heappush(waiting, found)
                        places[found].append(one)
        return self._used([symbol for symbol in symbols if symbol], halves)

    def _used(self, pieces: list[str], halves: dict[str, tuple[str, str]]) -> list[str]:
        """Split unused pieces again in the way they were joined."""
        if not halves:
            return pieces
        out: list[str] = []
        stack = pieces[::-1]
        while stack:
            piece = stack.pop()
            id = self._pieces.get(piece)
            if id is not None and self._types[id] == _UNUSED and piece in halves:
                stack.extend(halves[piece][::-1])
            else:
                out.append(piece)
        return out

    def _prepare_unigram(self) -> None:
        spec = self._spec
        normal = [
            float(score)
            for score, kind in zip(spec.scores, self._types, strict=False)
            if kind == _NORMAL
        ]
        self._unknown_score = _float32(min(normal, default=0.0) - _UNKNOWN_PENALTY)
        self._piece_scores: dict[str, float] = {}
        self._prefixes: set[str] = set()
        for piece, id in self._pieces.items():
            self._prefixes.update(piece[:end] for end in range(1, len(piece) + 1))
            if self._types[id] == _USER_DEFINED:
                # A bonus that outweighs any alternative, as measured on the library (0.2.3).
                self._piece_scores[piece] = 0.1 * (len(piece.encode()) - 1)
            elif self._types[id] != _UNUSED:
                self._piece_scores[piece] = float(spec.scores[id])
        self._longest = max(map(len, self._piece_scores), default=1)

    def _best_path(self, text: str) -> list[str]:
        """Viterbi; of equal paths the one found first wins; sums are float32."""
        size = len(text)
        best = [0.0, *[-math.inf] * size]
        starts = [-1] * (size + 1)
        known: dict[str, list[tuple[int, float]]] = {}  # pieces by beginning
        for start in range(size):
            so_far = best[start]
            window = text[start : start + self._longest]
            found = known.get(window)
            if found is None:
                if len(known) == _WINDOWS:
                    known.clear()
                found = self._beginnings(window)
                if len(window) <= _WINDOW:
                    known[window] = found
            for length, score in found:
                end, total = start + length, score + so_far
                if total > best[end]:  # if not greater before rounding, not after it either
                    total = _float32(total)
                    if total > best[end]:
                        best[end], starts[end] = total, start
        pieces: list[str] = []
        end = size
        while end > 0:
            pieces.append(text[starts[end] : end])
            end = starts[end]
        return pieces[::-1]

    def _beginnings(self, window: str) -> list[tuple[int, float]]:
        """Lengths and scores of the pieces that *window* begins with; of one character at least."""
        found = []
        for end in range(1, len(window) + 1):
            piece = window[:end]
            if piece not in self._prefixes:
                break
            score = self._piece_scores.get(piece)
            if score is not None:
                found.append((end, score))
        if not found or found[0][0] != 1:
            found.append((1, self._unknown_score))
        return found


def _user_defined(spec: TokenizerSpec) -> AddedTokens:
    """The user-defined pieces of a Unigram model."""
    pieces = zip(spec.tokens, spec.token_types, strict=False)
    return AddedTokens(
        AddedToken(id, piece) for id, (piece, kind) in enumerate(pieces) if kind == _USER_DEFINED
    )


class _Chunk(NamedTuple):
    """Replacement of the characters *start* to *stop*, one for one if *same*."""

    text: str
    start: int
    stop: int
    same: bool


def _single_spaces(chunks: Iterable[_Chunk]) -> list[_Chunk]:
    """*chunks* without leading spaces that follow a space or the start of the text."""
    out: list[_Chunk] = []
    after_space = True
    for chunk in chunks:
        rest = chunk.text.lstrip(" ") if after_space else chunk.text
        if rest:
            less = len(chunk.text) - len(rest) if chunk.same else 0
            out.append(chunk._replace(text=rest, start=chunk.start + less))
            after_space = rest.endswith(" ")
    return out


def _byte_ids(tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    spelled = {f"<0x{byte:02X}>": byte for byte in range(256)}
    ids = [-1] * 256
    for id, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if token in spelled and kind in (_BYTE, _NORMAL):
            ids[spelled[token]] = id
    if -1 in ids:
        raise InvalidFormat(
            f"byte fallback needs 256 byte tokens, <0x{ids.index(-1):02X}> is missing"
        )
    return ids


def _width(lead: int) -> int:
    """Number of bytes of the UTF-8 character that starts with *lead*."""
    if lead < 0x80:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
