"""The server under a mixed load: no lost or wrong answer, constant memory, no long gap in a stream.

    python benchmarks/serve_mixed.py [MODEL] [--clients 50 --requests 200] [--json FILE]

The default MODEL is a tiny random one.

- Load: CLIENTS clients with REQUESTS requests each, of these kinds in turn: a completion whose text
  is compared with the one that the model generates alone; an answer or a tool call whose grammar or
  schema permits a single text; a stream that the client leaves after its first event; a body that
  must be refused. Each request has an id of its own, which the reply must repeat.
- Gaps: one client reads a stream while another sends the most expensive requests that are allowed;
  the result is the longest time between two events.

The exit code is 1 if an answer is lost or wrong, if memory grows by more than --growth-mb over the
second half of the requests, or if a gap is longer than --gap-s.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ProcessPoolExecutor
from http import HTTPStatus
from pathlib import Path

from arguments import at_least
from serve import PROMPTS, Server, events, free_port

from bitnet import load
from bitnet.bench import describe_machine

CONTEXT = 1024
TOKENS = 16
SAMPLES = 20  # of the server's memory
LETTERS = "abcdefghij"
# Characters of the tiny model's tokens: those of JSON, and of the texts and the template.
WRITABLE = ' \n"{}[]<>_/:,.!-0123456789' + "abcdefghijklmnopqrstuvwxyz" + "IT"
KINDS = ("alone", "choice", "schema", "tool", "left", "chat", "refused")


class Mixed(Exception):
    """A reply has an id, a status or a text that its request must not get."""


def tiny_model(folder):
    """A file with a random model that has a token for each character of JSON."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
    from tiny_keys import VOCAB
    from tiny_models import tiny_gguf

    from bitnet.tokenizer.spec import byte_spelling

    tokens = ["<s>", "</s>", "<x>", *(byte_spelling(letter.encode()) for letter in WRITABLE)]
    tokens += [f"<unused{number}>" for number in range(VOCAB - len(tokens))]
    template = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
    keys = {
        "llama.context_length": CONTEXT,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.chat_template": template,
    }
    return tiny_gguf(folder / "tiny.gguf", **keys)


async def send(port, path, body, request_id):
    """Send *body*, and return the status of the reply, the reader of its body, and the writer.

    The caller closes the writer.

    Raises:
        Mixed: the reply has the id of another request.
    """
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"X-Request-ID: {request_id}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if headers.get("x-request-id") != request_id:
            raise Mixed(f"{request_id} got the headers of {headers.get('x-request-id')}")
    except BaseException:
        writer.close()
        raise
    return int(head[0].split()[1]), reader, writer


async def whole(port, path, body, request_id):
    """The status and the JSON body of an answer that is not streamed."""
    status, reader, writer = await send(port, path, body, request_id)
    try:
        return status, json.loads(await reader.read())
    finally:
        writer.close()


async def refuse_other_status(kind, name, status, reader):
    """Refuse a reply whose *status* is not 200; *reader* has its body.

    Raises:
        Mixed: the status is not 200, such as 503 if the queue is full.
    """
    if status != 200:
        body = (await reader.read()).decode(errors="replace")
        raise Mixed(f"{kind} {name}: status {status}, {body[:200]}")


def word_of(name):
    """A word that only the request with the id *name* has, of letters and hyphens."""
    return "".join(LETTERS[int(char)] if char.isdigit() else char for char in name)


def prompt_of(name, prompts):
    """One of *prompts* for the request with the id *name*, in every run the same one."""
    return prompts[zlib.crc32(name.encode()) % len(prompts)]


async def request(port, kind, name, expected):
    """Make one request of *kind* with the id *name*.

    *expected* is the text that the model generates alone for each prompt.

    Raises:
        Mixed: the answer is not the expected one.
        LookupError, TypeError: it does not have the form of an answer.
    """
    word = word_of(name)
    completion = {"max_tokens": TOKENS, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": "write it"}], "max_tokens": 4 * TOKENS}
    if kind == "alone":
        prompt = prompt_of(name, list(expected))
        body = completion | {"prompt": prompt, "stream": True}
        right_answer = expected[prompt]
        status, reader, writer = await send(port, "/v1/completions", body, name)
        try:
            await refuse_other_status(kind, name, status, reader)
            parts = [event["choices"][0]["text"] async for event in events(reader)]
        finally:
            writer.close()
        actual = "".join(parts)
    elif kind == "left":
        body = chat | {"stream": True, "ignore_eos": True}
        status, reader, writer = await send(port, "/v1/chat/completions", body, name)
        try:
            await refuse_other_status(kind, name, status, reader)
            await reader.readline()
        finally:
            writer.close()
        actual = right_answer = ""
    elif kind == "refused":
        field = f"no_{word}"
        status, facts = await whole(port, "/v1/completions", {"prompt": "a", field: 1}, name)
        if status != 400:
            raise Mixed(f"{kind} {name}: status {status}, {facts}")
        actual = facts["error"]["param"]
        right_answer = field
    else:
        if kind == "choice":
            path = "/v1/completions"
            body = {"prompt": "a", "structured_outputs": {"choice": [word]}}
            right_answer = word
            body |= {"max_tokens": 4 * TOKENS}
        else:
            schema = {
                "type": "object",
                "properties": {"id": {"const": word}},
                "required": ["id"],
                "additionalProperties": False,
            }
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            function = {"name": "keep", "parameters": schema}
            fields_by_kind = {
                "schema": {"response_format": form},
                "tool": {
                    "tools": [{"type": "function", "function": function}],
                    "tool_choice": "required",
                    "parallel_tool_calls": False,
                },
                "chat": {"structured_outputs": {"choice": [f"chat {word}"]}},
            }
            path = "/v1/chat/completions"
            body = chat | fields_by_kind[kind]
            right_answer = f"chat {word}" if kind == "chat" else {"id": word}
        status, facts = await whole(port, path, body, name)
        if status != 200:
            raise Mixed(f"{kind} {name}: status {status}, {facts}")
        first = facts["choices"][0]
        if kind == "tool":
            actual = json.loads(first["message"]["tool_calls"][0]["function"]["arguments"])
        else:
            actual = first["text"] if kind == "choice" else first["message"]["content"]
            actual = json.loads(actual) if kind == "schema" else actual
    if actual != right_answer:
        raise Mixed(f"{kind} {name}: {actual!r}, expected {right_answer!r}")


async def load_of(server, clients, requests, expected):
    """Number of correct answers by kind, the errors, and samples of the server's memory."""
    counts = dict.fromkeys(KINDS, 0)
    wrong = []
    memory = []
    total = clients * requests
    done = itertools.count(1)

    async def client(number):
        for turn in range(requests):
            kind = KINDS[(number + turn) % len(KINDS)]
            try:
                await request(server.port, kind, f"c{number}-r{turn}", expected)
                counts[kind] += 1
            except (Mixed, OSError, ValueError, EOFError, LookupError, TypeError) as error:
                wrong.append(f"{type(error).__name__}: {error}")
            at = next(done)
            if at % max(1, total // SAMPLES) == 0:
                memory.append([at, round(server.rss_mb(), 1)])
                print(f"{at} requests, {memory[-1][1]} MB", file=sys.stderr, flush=True)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return {"counts": counts, "wrong": wrong, "requests": total, "rss_mb": memory}


def attacks(context):
    """The most expensive requests that are allowed, by the part that is expensive.

    None stands for a client that sends nothing.
    """
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}

    def form(count):
        properties = {f"p{number}": {"type": "string"} for number in range(count)}
        schema = {"type": "object", "properties": properties}
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    return {
        "nothing": None,
        "schema": chat | {"response_format": form(450), "n": 8},
        "schema, refused": chat | {"response_format": form(4096), "n": 8},
        "regex": chat | {"structured_outputs": {"regex": "(a|b|c)*" * 64 + "(.*a){200}"}, "n": 8},
        "prompt": chat | {"messages": [{"role": "user", "content": "a b" * (context // 4)}]},
        "long text": chat | {"messages": [{"role": "user", "content": "ab" * 400_000}]},
        "messages": chat | {"messages": [{"role": "user", "content": "a"}] * 4096},
        "logprobs": chat | {"logprobs": True, "top_logprobs": 20, "n": 8, "max_tokens": 64},
    }


def post(port, body):
    """The status of the answer to *body*, and its error message, empty without an error."""
    address = f"http://127.0.0.1:{port}/v1/chat/completions"
    message = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(message) as reply:
            reply.read()
            return reply.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"][:200]


async def watch_streams(port, tokens, over):
    """Seconds between the events of streams, one stream after the other until *over* is done.

    The last one began before *over* was done; it counts as a whole.
    """
    gaps_s = []
    while not over.done():
        body = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        status, reader, writer = await send(port, "/v1/completions", body, "watched")
        if status != HTTPStatus.OK:
            writer.close()
            raise SystemExit(f"the watched stream was answered with {status}")
        last = None  # time of the last event; None at first, and once *over* is done
        async for _ in events(reader):
            now = time.perf_counter()
            if last is not None:
                gaps_s.append(now - last)
            last = None if over.done() else now
        writer.close()
    return gaps_s


async def gaps(port, context, times):
    """Longest time between two events of a stream, by what a client in another process sends.

    *times* is the number of requests of each kind of :func:`attacks`.
    """
    results = {}
    with ProcessPoolExecutor(1) as pool:
        for name, body in attacks(context).items():
            answers = []

            async def attack(body=body, answers=answers):
                for turn in range(times):
                    if body is None:
                        await asyncio.sleep(0.2)
                        continue
                    if "response_format" in body:  # a new schema each time: a known one is cached
                        body["response_format"]["json_schema"]["schema"]["title"] = str(turn)
                    loop = asyncio.get_running_loop()
                    answers.append(await loop.run_in_executor(pool, post, port, body))

            over = asyncio.ensure_future(attack())
            gaps_s = await watch_streams(port, context // 2, over)
            await over
            if not gaps_s:
                problem = f"{name}: its requests ended before a stream had two events"
                raise SystemExit(f"{problem}; send more: --attacks {10 * times}")
            results[name] = {"worst_s": max(gaps_s), "events": len(gaps_s), "answers": answers}
            print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    return results


def table(facts):
    """The results in Markdown."""
    run = facts["load"]
    counted = ", ".join(f"{count:,} {kind}" for kind, count in run["counts"].items())
    lines = [
        f"{run['requests']:,} requests ({counted}): {len(run['wrong'])} lost or wrong",
        "memory in MB: " + ", ".join(f"{size:.0f}" for _, size in run["rss_mb"])
        + f"; {facts['growth_mb']:+.1f} over the second half",
        "",
        "| another client sends | statuses | longest gap (ms) | events |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for name, row in facts["gaps"].items():
        statuses = ", ".join(sorted({str(status) for status, _ in row["answers"]})) or "-"
        lines.append(f"| {name} | {statuses} | {1000 * row['worst_s']:.0f} | {row['events']:,} |")
    return "\n".join(lines)


def measure(options, model, work):
    """All results of a server with *model*."""
    prompts = PROMPTS if options.model else tuple(prompt[:40].lower() for prompt in PROMPTS)
    with load(model, threads=options.threads) as alone:
        expected = {prompt: alone.generate(prompt, max_tokens=TOKENS) for prompt in prompts}
    port = free_port()
    command = [
        sys.executable, "-m", "bitnet", "serve", "--model", model, "--port", port,
        "--threads", options.threads, "--context", CONTEXT, "--queue", 2 * options.clients,
    ]  # fmt: skip
    server = Server("bitnet", [str(word) for word in command], port, work)
    try:
        server.wait("/health/ready")
        facts = {"load": asyncio.run(load_of(server, options.clients, options.requests, expected))}
        facts["gaps"] = asyncio.run(gaps(port, CONTEXT, options.attacks))
    finally:
        server.stop()
    memory = facts["load"]["rss_mb"]
    facts["growth_mb"] = memory[-1][1] - memory[len(memory) // 2][1]
    facts["machine"] = describe_machine([options.threads])
    return facts


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--clients", type=at_least(1), default=50)
    parser.add_argument("--requests", type=at_least(1), default=200, help="of each client")
    parser.add_argument("--attacks", type=at_least(1), default=5, help="of each kind")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--growth-mb", type=float, default=8)
    parser.add_argument("--gap-s", type=float, default=0.3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        facts = measure(options, options.model or tiny_model(work), work)
    print(table(facts))
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    for line in facts["load"]["wrong"][:5]:
        print(line, file=sys.stderr)
    worst = max(row["worst_s"] for row in facts["gaps"].values())
    grows = facts["growth_mb"] > options.growth_mb
    return int(bool(facts["load"]["wrong"]) or grows or worst > options.gap_s)


if __name__ == "__main__":
    sys.exit(main())
