"""The answer to a request depends on the request alone, with real weights."""

from concurrent.futures import ThreadPoolExecutor

from server_process import listening

SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 5, "max_tokens": 24}


def test_a_seed_gives_the_same_text_whatever_is_written_beside_it(test_models):
    prompts = ["The sea", "A lighthouse is", "def main():", "Once upon a time " * 30]
    with listening(
        test_models / "SmolLM2-135M-Instruct.Q4_1.gguf", max_batch=4, queue=100
    ) as worker:

        def ask(prompt):
            reply = worker.post("/v1/completions", SAMPLED | {"prompt": prompt})
            return reply.json()["choices"][0]["text"]

        alone = {prompt: ask(prompt) for prompt in prompts}
        with ThreadPoolExecutor(12) as pool:
            together = list(pool.map(ask, prompts * 3))
    assert together == [alone[prompt] for prompt in prompts * 3]
    assert len(set(alone.values())) == len(prompts)
