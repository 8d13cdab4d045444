"""Routes of llama.cpp's server, as its clients call them."""

import json

import pytest
from server_process import listening
from tool_models import WEATHER, tool_gguf

from bitnet import load

GREEDY = {"prompt": "abc", "n_predict": 8, "temperature": 0}


def test_a_completion_is_what_the_model_writes(worker, path):
    facts = worker.post("/completion", GREEDY | {"return_tokens": True}).json()
    with load(path) as model:
        answer = model.stream("abc", max_tokens=8)
        assert facts["content"] == "".join(answer)
    assert facts["tokens"] == answer.ids
    assert (facts["stop"], facts["stop_type"], facts["tokens_predicted"]) == (True, "limit", 8)
    text = facts["content"]
    stopped = worker.post("/completion", GREEDY | {"stop": [text[3:5]]}).json()
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", text[3:5])
    assert stopped["content"] == text[: text.index(text[3:5])]


def test_a_stream_is_the_whole_completion(worker):
    whole = worker.post("/completion", GREEDY).json()["content"]
    reply = worker.post("/completion", GREEDY | {"stream": True})
    events = [json.loads(one.removeprefix("data: ")) for one in reply.text.split("\n\n") if one]
    assert "".join(one["content"] for one in events) == whole
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == 8


def test_the_events_of_a_stream_have_all_tokens_of_the_completion(worker):
    plain = worker.post("/completion", GREEDY).json()["content"]
    # Tokens of a stop text are in the last event, and those of a text that is held back in the next
    # one. As in llama.cpp's server, a stream has them without return_tokens.
    for stop in ([], [plain[3:5]], [plain[3:5] + "é"]):
        request = GREEDY | {"stop": stop}
        whole = worker.post("/completion", request | {"return_tokens": True}).json()
        reply = worker.post("/completion", request | {"stream": True})
        events = [json.loads(one.removeprefix("data: ")) for one in reply.text.split("\n\n") if one]
        assert [token for event in events for token in event["tokens"]] == whole["tokens"] != []
        assert "".join(event["content"] for event in events) == whole["content"]


def test_the_probabilities_are_those_of_openais_route_with_ids(worker):
    request = GREEDY | {"n_probs": 3, "return_tokens": True}
    # Later answers take the prompt from the prefix cache; NumPy then adds in another order.
    worker.post("/completion", request)
    facts = worker.post("/completion", request).json()
    rows = facts["completion_probabilities"]
    assert [row["id"] for row in rows] == facts["tokens"]
    assert [len(row["top_logprobs"]) for row in rows] == [3] * 8
    same = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "logprobs": 3}
    (choice,) = worker.post("/v1/completions", same).json()["choices"]
    assert [row["logprob"] for row in rows] == choice["logprobs"]["token_logprobs"]
    for row in rows:
        assert row["top_logprobs"][0]["id"] == row["id"]
        assert bytes(row["bytes"]).decode("utf-8", "replace") == row["token"]

    streamed = worker.post("/completion", request | {"stream": True}).text
    events = [json.loads(each.removeprefix("data: ")) for each in streamed.split("\n\n") if each]
    assert [row for event in events for row in event.get("completion_probabilities", [])] == rows
    for count in (0, None):  # both request no probabilities
        plain = worker.post("/completion", GREEDY | {"n_probs": count}).json()
        assert "completion_probabilities" not in plain
    reply = worker.post("/completion", GREEDY | {"n_probs": 21})  # the most are 20
    assert (reply.status_code, "n_probs" in reply.text) == (400, True)


def test_a_bias_forbids_a_token(worker):
    asked = GREEDY | {"n_predict": 1, "return_tokens": True}
    (first,) = worker.post("/completion", asked).json()["tokens"]
    biased = asked | {"logit_bias": {str(first): -100}}
    forbidden = worker.post("/completion", biased).json()["tokens"]
    assert forbidden not in ([], [first])
    # In llama.cpp's README a bias is a pair.
    for pairs in ([[first, -100]], [[first, False]], [[first, -1.5e3], [forbidden[0], 1]]):
        reply = worker.post("/completion", asked | {"logit_bias": pairs})
        assert reply.json()["tokens"] == forbidden
    assert worker.post("/completion", asked | {"logit_bias": []}).json()["tokens"] == [first]


def test_fields_that_ask_for_nothing_are_accepted(worker):
    neutral = {"n_keep": 0, "post_sampling_probs": False, "return_progress": False, "lora": []}
    plain = worker.post("/completion", GREEDY).json()["content"]
    assert worker.post("/completion", GREEDY | neutral).json()["content"] == plain


def test_a_completion_follows_a_schema(worker):
    pytest.importorskip("llguidance")
    asked = GREEDY | {"n_predict": 60, "json_schema": {"const": {"a": 1}}}
    assert json.loads(worker.post("/completion", asked).json()["content"]) == {"a": 1}


def test_the_worker_is_described(worker):
    props = worker.http.get("/props").json()
    assert (props["total_slots"], props["eos_token"]) == (3, "</s>")
    assert "assistant." in props["chat_template"]
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert [slot["is_processing"] for slot in worker.http.get("/slots").json()] == [False] * 3
    assert worker.http.get("/health").json() == {"status": "ok"}
    worker.slot.drain()  # it stops, and is unavailable from now on
    reply = worker.http.get("/health")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, 503)


def test_a_template_is_applied_and_not_answered(worker):
    body = {"messages": [{"role": "user", "content": "abc"}]}
    assert worker.post("/apply-template", body).json() == {"prompt": "user.abc.assistant."}
    with_tool = worker.post("/apply-template", body | {"tools": [WEATHER]}).json()["prompt"]
    assert '"weather"' in with_tool


def test_openais_routes_are_also_served_without_their_prefix(worker):
    for path, body in (
        ("/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/completions", {"prompt": "a", "max_tokens": 2}),
        ("/embeddings", {"input": "a"}),
    ):
        short, whole = (worker.post(prefix + path, body).json() for prefix in ("", "/v1"))
        assert (short["object"], short["usage"]["prompt_tokens"]) == (
            whole["object"],
            whole["usage"]["prompt_tokens"],
        )
    assert worker.http.get("/models").json() == worker.http.get("/v1/models").json()


def test_vectors_come_as_lists_of_rows(worker):
    data = worker.post("/v1/embeddings", {"input": ["ab", "c"]}).json()["data"]
    rows = worker.post("/embedding", {"content": ["ab", "c"]}).json()
    assert rows == [{"index": at, "embedding": [data[at]["embedding"]]} for at in (0, 1)]
    assert worker.post("/embedding", {"content": "ab"}).json() == rows[:1]
    assert worker.post("/embedding", {"content": []}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grammar": "root ::= x"}, "grammar: line 1"),
        ({"mirostat": 3}, "mirostat is 3"),
        ({"n_predict": -3}, "n_predict is -3"),
        ({"top_p": 3.0}, "top_p is 3.0"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0"),
        ({"logit_bias": [["a", 2]]}, "logit_bias.0: expected a token id"),
        ({"logit_bias": [[1, True]]}, "logit_bias.0: expected a token id"),
        ({"logit_bias": [[1, 2, 3]]}, "logit_bias.0: expected a token id"),
        ({"logit_bias": [[1, 2], [1, 3]]}, "logit_bias.1: token id 1 has a bias already"),
        ({"logit_bias": [1]}, "logit_bias.0: expected a list"),
        ({"logit_bias": [[-1, 2]]}, "logit_bias is '-1=2'"),
        ({"n_keep": 5}, "n_keep is not served"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora is not served"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [999]}, "the prompt has token ids outside"),
    ],
)
def test_what_is_not_served_is_refused_in_its_form(worker, fields, words):
    reply = worker.post("/completion", GREEDY | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, 400)
    assert error["message"].startswith(words)


#: Control tokens around the parts of a file with a gap, and before the names of files.
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>"]


def test_a_gap_is_filled_between_its_tokens(tmp_path):
    path = tool_gguf(tmp_path / "gaps.gguf", control=MARKS)
    more = {"n_predict": 4, "ignore_eos": True}
    request = GREEDY | {"input_prefix": "def a", "input_suffix": "c", "prompt": "b", **more}
    request |= {"input_extra": [{"filename": "d.c", "text": "e"}]}
    with listening(path) as worker, load(path) as model:
        facts = worker.post("/infill", request).json()
        # "file" is the name of the file with the gap, which is not in the request.
        ids = model.tokenizer.encode(
            "<|file_sep|>d.c\ne<|file_sep|>file\n<|fim_prefix|>def ab<|fim_suffix|>c<|fim_middle|>"
        )
        same = worker.post("/completion", GREEDY | {"prompt": ids, **more}).json()
        assert facts["content"] == same["content"] != ""
        assert facts["tokens_evaluated"] == len(ids)
        # Marks in the text of a file are text.
        # They are spelled by a token per character.
        plain = request | {"input_prefix": "<|fim_suffix|>", "input_extra": []}
        assert worker.post("/infill", plain).json()["tokens_evaluated"] > len("<|fim_suffix|>")


def test_a_model_without_tokens_for_gaps_is_refused(worker):
    reply = worker.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, 400)
    assert "no tokens for the text before and after a gap" in reply.json()["error"]["message"]


def test_only_the_prompt_is_run_if_no_token_is_requested(worker):
    """As editors do, so that the next completion finds the prompt's keys and values."""
    reply = worker.post("/completion", GREEDY | {"prompt": "abcd", "n_predict": 0}).json()
    assert (reply["content"], reply["tokens_predicted"]) == ("", 0)
    assert (reply["timings"]["predicted_n"], reply["stop_type"]) == (0, "limit")
    after = worker.post("/completion", GREEDY | {"prompt": "abcd", "n_predict": 2}).json()
    assert after["tokens_cached"] > 0


def test_a_reply_has_only_the_requested_fields(worker):
    names = ["content", "timings/prompt_n", "no_such/field"]
    reply = worker.post("/completion", GREEDY | {"response_fields": names}).json()
    assert set(reply) == {"content", "prompt_n"}


def test_samplers_that_are_not_chosen_do_nothing(worker):
    # Temperature 0 means greedy only if the temperature sampler runs.
    asked = GREEDY | {"temperature": 0.0, "seed": 5, "n_predict": 12}
    greedy = worker.post("/completion", asked).json()["content"]
    assert worker.post("/completion", asked | {"samplers": ["top_k"]}).json()["content"] != greedy
    chosen = worker.post("/completion", asked | {"samplers": ["top_k", "temperature", "infill"]})
    assert chosen.json()["content"] == greedy
    assert chosen.headers["bitnet-ignored"] == "samplers"


def test_ids_come_with_their_pieces(worker):
    ids = worker.post("/tokenize", {"content": "ab"}).json()["tokens"]
    pieces = worker.post("/tokenize", {"content": "ab", "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    assert "".join(piece["piece"] for piece in pieces) == "ab"
    assert worker.post("/detokenize", {"tokens": ids}).json()["content"] == "ab"
    longer = worker.post("/tokenize", {"content": "ab", "add_special": True}).json()["tokens"]
    assert longer[-len(ids) :] == ids


def test_a_suffix_of_other_dialects_makes_the_same_gap(tmp_path, worker):
    path = tool_gguf(tmp_path / "gaps.gguf", control=MARKS)
    gap = {"input_prefix": "ab", "input_suffix": "c", "prompt": ""}
    with listening(path) as filling:
        infill = filling.post("/infill", GREEDY | gap | {"n_predict": 4, "ignore_eos": True}).json()
        greedy = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
        asked = {"prompt": ["ab", "ab"], "suffix": "c", **greedy}
        texts = [each["text"] for each in filling.post("/v1/completions", asked).json()["choices"]]
        assert texts == [infill["content"]] * 2
        options = {"temperature": 0, "num_predict": 4}
        asked = {"model": "m", "prompt": "ab", "suffix": "c", "options": options, "stream": False}
        reply = filling.post("/api/generate", asked).json()
        assert reply["prompt_eval_count"] == infill["tokens_evaluated"]
        # Ollama has no ignore_eos, so its answer may end earlier.
        assert infill["content"].startswith(reply["response"])
        ids = filling.post("/v1/completions", {"prompt": [1, 2], "suffix": "c"})
        assert (ids.status_code, ids.json()["error"]["param"]) == (400, "suffix")
        with_system = filling.post("/api/generate", asked | {"system": "be brief"})
        assert (with_system.status_code, with_system.json()["error"][:7]) == (400, "suffix:")
    refused = worker.post("/v1/completions", {"prompt": "ab", "suffix": "c"})
    assert refused.status_code == 400
    assert "no tokens for the text before and after a gap" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.3},
        {"top_n_sigma": 0.2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"dynatemp_range": 1.5},
        {"mirostat": 1, "mirostat_tau": 1.0},
        {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
        {"dry_multiplier": 50.0, "dry_allowed_length": 0, "dry_sequence_breakers": ["z"]},
        {"repeat_penalty": 5.0, "repeat_last_n": 2},
        {"samplers": ["temperature", "top_k"], "top_k": 3},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_sampler_changes_the_answer_and_a_seed_repeats_it(worker, fields):
    hot = GREEDY | {"temperature": 1.2, "n_predict": 24, "ignore_eos": True, "seed": 5}
    first, second = (worker.post("/completion", hot | fields).json()["content"] for _ in range(2))
    assert first == second
    assert first != worker.post("/completion", hot).json()["content"]


def test_an_answer_follows_a_grammar(worker):
    pytest.importorskip("llguidance")
    grammar = 'root ::= "yes" | "no"'
    reply = worker.post("/completion", GREEDY | {"grammar": grammar, "n_predict": 20}).json()
    assert reply["content"] in ("yes", "no")
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20}
    for fields in ({"grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
        chat = worker.post("/v1/chat/completions", ask | fields).json()
        assert chat["choices"][0]["message"]["content"] in ("yes", "no")
    wrong = worker.post("/completion", GREEDY | {"grammar": "root ::= x"})
    assert wrong.status_code == 400
    assert "there is no rule 'x'" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("least", "content"),  # spaces, and the text up to the first line with fewer
    [
        (0, "a\n  b\n c d\n  e"),
        (1, "a\n  b\n c d\n  e"),
        (2, "a\n  b\n "),
        (3, "a\n  "),
    ],
)
def test_a_line_with_too_little_indentation_ends_the_answer(worker, least, content):
    """As in llama.cpp's server, the white space before the first letter of that line is kept."""
    pytest.importorskip("llguidance")
    grammar = 'root ::= "a\\n  b\\n c d\\n  e"'
    asked = GREEDY | {"grammar": grammar, "n_predict": 40, "n_indent": least}
    whole = worker.post("/completion", asked)
    assert whole.json()["content"] == content
    assert "bitnet-ignored" not in whole.headers
    lines = worker.post("/completion", asked | {"stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["content"] for event in events) == content
    # No line after the first has fewer than one space: with 0 and 1 the grammar ends the answer.
    assert (events[-1]["stop_type"] == "limit") == (least > 1)


def test_a_time_limit_waits_for_the_end_of_a_line(worker):
    pytest.importorskip("llguidance")
    grammar = 'root ::= "abcdefgh" ("\\n" "ab"){300}'
    request = GREEDY | {"grammar": grammar, "n_predict": 400, "t_max_predict_ms": 1}
    facts = worker.post("/completion", request).json()
    assert facts["content"].startswith("abcdefgh\n")
    assert facts["stop_type"] == "limit"
    assert facts["tokens_predicted"] < 400
    for no_limit in (0, -1, None):  # -1 is llama.cpp's default
        body = request | {"t_max_predict_ms": no_limit, "n_predict": 60}
        assert worker.post("/completion", body).json()["tokens_predicted"] == 60
    reply = worker.post("/completion", request | {"t_max_predict_ms": -2})
    assert reply.status_code == 400
