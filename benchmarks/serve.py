"""The server under load: answers, latency, throughput and memory, beside llama.cpp's server.

    python benchmarks/serve.py MODEL [--clients 50 --requests 200] [--peers FOLDER]
        [--peer-python PYTHON] [--turns 5] [--mixed 1500] [--threads N] [--json FILE]
        [--table FILE]

FOLDER has the builds of peers.py. Without it PYTHON is the interpreter of an environment with the
package ``xllamacpp``, which contains llama.cpp's server; without either ours runs alone. Each runs
in a process of its own with the same model, context, threads and number of slots, and gets the same
requests: streamed completions, decoded greedily. A server that is not measured is stopped
(SIGSTOP), so that it takes no time from the other.

- Load: CLIENTS clients with REQUESTS requests each to our server. Every text is compared with the
  one that the model generates alone, and the memory of the server is sampled.
- Rates: 1 and 8 concurrent clients; the servers take turns, and the first turn does not count.
- Mixed, with --mixed TOKENS in place of rates: eight concurrent clients, every fourth prompt of
  about TOKENS tokens. Seconds to the first token by kind of prompt, and the longest time between
  two parts of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from peers import program

from bitnet import load
from bitnet.bench import describe_machine

PEER = Path(__file__).with_name("peer_server.py")
SLOTS = 8
CONTEXT = 512  # of each answer
SAMPLES = 20  # of our server's memory
TOPICS = (
    "the sea", "a lighthouse", "old maps", "bread", "the first trains", "winter", "a violin",
    "bees", "the moon", "clay pots", "a long bridge", "salt", "paper", "a market", "rivers",
    "glass", "wool", "a small museum", "the wind", "gardens", "copper", "owls", "ink", "canals",
)  # fmt: skip
PROMPTS = tuple(
    f"This is the beginning of a chapter about {topic}, written for readers who know nothing "
    "about it yet and would like to see how it came to be what it is. It begins like this:"
    for topic in TOPICS
)


@dataclass(frozen=True)
class Reply:
    """One answer as a client received it.

    Seconds are those to the first text, to the end, and of the longest pause between two texts.
    """

    prompt: str
    text: str
    tokens: int
    first_s: float
    total_s: float
    gap_s: float


class Server:
    """A server in a process of its own, which :meth:`pause` stops and :meth:`resume` continues."""

    def __init__(self, name, command, port, work):
        self.name = name
        self.port = port
        self.log = work / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self, path):
        """Return once *path* answers with 200.

        Raises:
            SystemExit: the server ended.
        """
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5):
                    return
            except OSError:  # noqa: PERF203
                time.sleep(0.1)
        raise SystemExit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")

    def pause(self):
        """Stop the process (SIGSTOP), so that it takes no time from the other server."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        """Continue the process after :meth:`pause`."""
        self.process.send_signal(signal.SIGCONT)

    def rss_mb(self):
        """Resident memory of the process in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise SystemExit("no VmRSS: this needs Linux")

    def stop(self):
        """Kill the process, also a paused one."""
        self.process.kill()
        self.process.wait()


def start_servers(options, work, stack):
    """Our server and, if it is available, llama.cpp's, both loaded and paused.

    The :class:`~contextlib.ExitStack` *stack* stops each of them, also if one ends while it loads.
    """
    port = free_port()
    peer_port = free_port()
    context = CONTEXT + options.mixed
    ours = [
        sys.executable, "-m", "bitnet", "serve", "--model", options.model, "--port", port,
        "--threads", options.threads, "--context", context, "--max-batch", SLOTS,
        "--queue", max(64, options.clients),
    ]  # fmt: skip
    servers = [Server("bitnet", [str(word) for word in ours], port, work)]
    stack.callback(servers[0].stop)
    built = program(options.peers, "llama.cpp") if options.peers else None
    if built:
        peer = [
            built, "-m", options.model, "--host", "127.0.0.1", "--port", peer_port, "-t",
            options.threads, "-c", context * SLOTS, "-np", SLOTS,
        ]  # fmt: skip
    elif options.peer_python:
        peer = [
            options.peer_python, PEER, options.model, peer_port, options.threads, context, SLOTS,
        ]  # fmt: skip
    if built or options.peer_python:
        servers.append(Server("llama.cpp", [str(word) for word in peer], peer_port, work))
        stack.callback(servers[-1].stop)
    # The peer may be missing.
    for server, path in zip(servers, ("/health/ready", "/health"), strict=False):
        server.wait(path)
        server.pause()
    return servers


def free_port():
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def ask(port, prompt, max_tokens):
    """The :class:`Reply` to *prompt*, streamed.

    Raises:
        ValueError: the status is not 200, or the stream breaks off.
    """
    body = {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    content = json.dumps(body).encode()
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError(head.decode() + (await reader.read()).decode())
        text = []
        tokens = None
        first = 0.0
        last = 0.0
        gap = 0.0
        async for facts in events(reader):
            if facts.get("usage"):
                tokens = facts["usage"]["completion_tokens"]
            for choice in facts.get("choices", ()):
                if choice["text"]:
                    now = time.perf_counter() - begin
                    first = first or now
                    if last:
                        gap = max(gap, now - last)
                    last = now
                    text.append(choice["text"])
    finally:
        writer.close()
    if tokens is None:
        raise ValueError("the stream ended without its counts")
    return Reply(prompt, "".join(text), tokens, first, time.perf_counter() - begin, gap)


async def events(reader):
    """Yield the JSON of each server-sent event of a chunked body, up to ``[DONE]``."""
    unfinished = b""
    while size := int(await reader.readline(), 16):
        unfinished += (await reader.readexactly(size + 2))[:-2]
        *finished, unfinished = unfinished.split(b"\n\n")
        for event in finished:
            if event == b"data: [DONE]":
                return
            if event.startswith(b"data: "):
                yield json.loads(event[6:])
    raise ValueError("the stream broke off")


async def load_of(port, clients, prompts, max_tokens, each=None, lost=None):
    """All replies to *prompts* of concurrent *clients*, in the order of their ends.

    Args:
        port: port of the server.
        clients: number of clients, each of which waits for its reply before its next request.
        prompts: the prompts of all clients together.
        max_tokens: limit of each answer.
        each: called after every reply, with the replies so far.
        lost: list that gets the errors of requests without a reply; by default the first one ends
            the load.
    """
    left_prompts = iter(prompts)  # shared: each client takes the next one
    replies = []

    async def client():
        for prompt in left_prompts:
            try:
                replies.append(await ask(port, prompt, max_tokens))
            except (OSError, ValueError, EOFError) as error:
                if lost is None:
                    raise
                lost.append(error)
                continue
            if each:
                each(replies)

    await asyncio.gather(*(client() for _ in range(clients)))
    return replies


def under_load(server, options, expected):
    """Results of many clients: every answer is compared, and memory is read about SAMPLES times.

    *expected* is the text that the model generates alone for each prompt.
    """
    count = options.clients * options.requests
    prompts = list(itertools.islice(itertools.cycle(PROMPTS), count))
    memory = []
    lost = []

    def look(replies):
        if len(replies) % max(1, count // SAMPLES) == 0:
            memory.append([len(replies), round(server.rss_mb(), 1)])
            print(f"{len(replies)} answers, {memory[-1][1]} MB", file=sys.stderr, flush=True)

    server.resume()
    begin = time.perf_counter()
    coroutine = load_of(server.port, options.clients, prompts, options.load_tokens, look, lost)
    replies = asyncio.run(coroutine)
    elapsed_s = time.perf_counter() - begin
    server.pause()
    wrong = [reply for reply in replies if reply.text != expected[reply.prompt]]
    for reply in wrong[:3]:
        print(f"wrong: {reply.text!r}, alone: {expected[reply.prompt]!r}", file=sys.stderr)
    for error in lost[:3]:
        print(f"lost: {type(error).__name__}: {error}", file=sys.stderr)
    if not replies:
        raise SystemExit("no request has an answer")
    return {
        "clients": options.clients,
        "requests": len(replies),
        "lost": len(lost),
        "wrong": len(wrong),
        "seconds": elapsed_s,
        "tokens_per_s": sum(reply.tokens for reply in replies) / elapsed_s,
        "first_token_s": quantiles([reply.first_s for reply in replies]),
        "answer_s": quantiles([reply.total_s for reply in replies]),
        "rss_mb": memory,
    }


def quantiles(values):
    """Median and 95th percentile."""
    # The 95th percentile is the last of 19 cuts; a single value is every one of them. No cut lies
    # beyond the values, also not among few of them.
    many = len(values) > 1
    cuts = statistics.quantiles(values, n=20, method="inclusive") if many else values * 19
    return {"p50": statistics.median(values), "p95": cuts[18]}


def timed_load(server, clients, prompts, options):
    """Replies of *server*, which runs only for them, and the seconds until the last one."""
    server.resume()
    begin = time.perf_counter()
    replies = asyncio.run(load_of(server.port, clients, prompts, options.max_tokens))
    elapsed_s = time.perf_counter() - begin
    server.pause()
    return replies, elapsed_s


def turns_of(options):
    """Yield each turn, its number of clients, and its prompts.

    A prompt begins with a number that no other has, so that no prefix is found in a cache.
    """
    numbers = itertools.count(1)
    for turn, clients in itertools.product(range(options.turns + 1), (1, SLOTS)):
        count = options.turn_requests * clients
        prompts = [f"{next(numbers)}. {PROMPTS[at % len(PROMPTS)]}" for at in range(count)]
        yield turn, clients, prompts


def rates(servers, options):
    """Tokens per second of each server with 1 and with 8 clients, turn by turn."""
    speeds = {server.name: {1: [], SLOTS: []} for server in servers}
    firsts = {server.name: {1: [], SLOTS: []} for server in servers}
    for turn, clients, prompts in turns_of(options):
        for server in servers:
            replies, elapsed_s = timed_load(server, clients, prompts, options)
            print(f"{turn} {server.name} {clients}: {elapsed_s:.1f} s", file=sys.stderr, flush=True)
            if turn:
                tokens = sum(reply.tokens for reply in replies)
                speeds[server.name][clients].append(tokens / elapsed_s)
                firsts[server.name][clients] += [reply.first_s for reply in replies]
    return {
        name: {
            str(clients): {
                "tokens_per_s": by_clients[clients],
                "first_token_s": quantiles(firsts[name][clients]),
            }
            for clients in by_clients
        }
        for name, by_clients in speeds.items()
    }


def mixed(servers, options):
    """Speed, pauses and times to the first token with long and short prompts at the same time."""
    replies = {server.name: {"short": [], "long": []} for server in servers}
    seconds = {server.name: 0.0 for server in servers}
    words = " ".join(TOPICS).replace(",", "").split()
    for turn in range(options.turns + 1):
        count = options.turn_requests * SLOTS
        prompts = []
        for at in range(count):
            number = f"{turn}.{at}. "
            many = itertools.islice(itertools.cycle(words[at:] + words[:at]), options.mixed)
            prompts.append(number + (PROMPTS[at % len(PROMPTS)] if at % 4 else " ".join(many)))
        # Characters of the longest short prompt, with room for the number before it.
        longest = max(map(len, PROMPTS)) + 10
        for server in servers:
            answers, elapsed_s = timed_load(server, SLOTS, prompts, options)
            print(f"{turn} {server.name} mixed: {elapsed_s:.1f} s", file=sys.stderr, flush=True)
            if turn:
                seconds[server.name] += elapsed_s
                for reply in answers:
                    kind = "long" if len(reply.prompt) > longest else "short"
                    replies[server.name][kind].append(reply)
    return {
        name: {
            "tokens_per_s": sum(reply.tokens for kind in by_kind.values() for reply in kind)
            / seconds[name],
            "worst_gap_s": max(reply.gap_s for kind in by_kind.values() for reply in kind),
            "first_token_s": {
                kind: quantiles([reply.first_s for reply in by_kind[kind]]) for kind in by_kind
            },
        }
        for name, by_kind in replies.items()
    }


def mixed_table(by_name):
    """The results of :func:`mixed` as lines of Markdown."""
    lines = [
        "",
        "| server, mixed | tok/s | first token of short ones p50 / p95 (s) | of long ones | "
        "longest gap (s) |",
        "|---|---|---|---|---|",
    ]
    for name, row in by_name.items():
        short, long = (row["first_token_s"][kind] for kind in ("short", "long"))
        lines.append(
            f"| {name} | {row['tokens_per_s']:.0f} | {short['p50']:.2f} / {short['p95']:.2f} | "
            f"{long['p50']:.2f} / {long['p95']:.2f} | {row['worst_gap_s']:.2f} |"
        )
    return lines


def table(facts):
    """The results in Markdown."""
    lines = []
    if run := facts.get("load"):
        memory = run["rss_mb"]
        lines += [
            f"{run['clients']} clients, {run['requests']:,} requests: {run['lost']} lost, "
            f"{run['wrong']} wrong, {run['tokens_per_s']:.0f} tok/s; seconds to the first token "
            f"p50 {run['first_token_s']['p50']:.2f}, p95 {run['first_token_s']['p95']:.2f}; "
            f"to the last p50 {run['answer_s']['p50']:.2f}, p95 {run['answer_s']['p95']:.2f}",
            "",
            "memory in MB after so many requests: "
            + ", ".join(f"{count:,}: {size:.0f}" for count, size in memory),
            "",
        ]
    if by_name := facts.get("mixed"):
        lines += mixed_table(by_name)
    if not (by_name := facts.get("rates")):
        return "\n".join(lines)
    head = [
        "server",
        "1 client, tok/s",
        "8 clients, tok/s",
        "8 over 1",
        "first token p50 / p95 (s)",
    ]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    medians = {}
    for name, by_clients in by_name.items():
        single, many = (statistics.median(by_clients[n]["tokens_per_s"]) for n in ("1", str(SLOTS)))
        first = by_clients[str(SLOTS)]["first_token_s"]
        medians[name] = (single, many)
        lines.append(
            f"| {name} | {single:.0f} | {many:.0f} | {many / single:.2f} | "
            f"{first['p50']:.3f} / {first['p95']:.3f} |"
        )
    if "llama.cpp" in medians:
        (single, many), peer = medians["bitnet"], medians["llama.cpp"]
        lines.append(f"| ours / llama.cpp | {single / peer[0]:.2f} | {many / peer[1]:.2f} | | |")
    return "\n".join(lines)


def main():
    """Measure and print; True if an answer is lost or wrong.

    With --mixed the rates are not measured.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=200, help="of each client; 0: no load")
    parser.add_argument("--load-tokens", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer when rates count")
    parser.add_argument("--turns", type=int, default=5, help="0: no rates")
    parser.add_argument("--mixed", type=int, default=0, help="tokens of a long prompt; 0: not run")
    parser.add_argument("--turn-requests", type=int, default=4, help="of each client in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    facts = {"machine": describe_machine([options.threads]), "model": options.model.name}
    facts["threads"] = options.threads
    expected = {}
    if options.requests:
        with load(options.model, threads=options.threads) as model:
            expected = {
                prompt: model.generate(prompt, max_tokens=options.load_tokens, temperature=0.0)
                for prompt in PROMPTS
            }
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        servers = start_servers(options, Path(work), stack)
        if options.turns and options.mixed:
            facts["mixed"] = mixed(servers, options)
        elif options.turns:
            facts["rates"] = rates(servers, options)
        if options.requests:
            facts["load"] = under_load(servers[0], options, expected)
    machine = facts["machine"]
    text = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}\n\n{table(facts)}"
    print(text)
    if options.table:
        options.table.write_text(text + "\n")
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    load_facts = facts.get("load", {"lost": 0, "wrong": 0})
    return bool(load_facts["lost"] or load_facts["wrong"])


if __name__ == "__main__":
    sys.exit(main())
