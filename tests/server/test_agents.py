"""Frameworks for agents, end to end with the worker: typed answers, tools, and a proxy."""

import asyncio
import json
import os
import shutil
import subprocess
from typing import Literal

import httpx
import openai
import pytest
from server_process import listening
from tool_models import CITIES, tool_gguf
from waiting import PATIENCE_S, free_port, until

pytest.importorskip("llguidance")
pydantic = pytest.importorskip("pydantic")

KEY = "sk-" + "0123456789abcdef" * 4  # of LiteLLM's proxy
NEEDS = "pip install 'bitnet-xtask[server-test]'"


#: The type of an answer; its name has only letters for which the tiny model has tokens.
Weather = pydantic.create_model(
    "weather",
    __config__=pydantic.ConfigDict(extra="forbid"),
    city=(Literal["oslo", "rome"], ...),
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    path = tool_gguf(tmp_path_factory.mktemp("agents") / "m.gguf")
    with listening(path, max_output_tokens=400) as worker:
        yield worker


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_gets_an_object_of_the_type(worker, mode):
    instructor = pytest.importorskip("instructor", reason=NEEDS)
    with openai.OpenAI(base_url=f"{worker.address}/v1", api_key="none", max_retries=0) as client:
        typed = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        weather = typed.chat.completions.create(
            model="tiny", response_model=Weather, max_retries=0, max_tokens=300,
            messages=[{"role": "user", "content": "a"}],
        )  # fmt: skip
    assert weather.city in CITIES


def test_pydantic_ai_gets_an_object_of_the_type(worker):
    ai = pytest.importorskip("pydantic_ai", reason=NEEDS)
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run_agent():
        # A client that pydantic-ai makes itself would stay open.
        async with openai.AsyncOpenAI(base_url=f"{worker.address}/v1", api_key="none") as client:
            model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
            agent = ai.Agent(model, output_type=Weather, model_settings={"max_tokens": 300})
            return await agent.run("a")

    result = asyncio.run(run_agent())
    assert result.output.city in CITIES
    assert result.usage.input_tokens > 0


@pytest.mark.parametrize("api", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openais_agents_call_a_function(worker, api):
    agents = pytest.importorskip("agents", reason=NEEDS)
    agents.set_tracing_disabled(True)
    cities = []

    @agents.function_tool
    def weather(city: Literal["oslo", "rome"]) -> str:
        """The weather."""
        cities.append(city)
        return "rain"

    async def run_agent():
        async with openai.AsyncOpenAI(
            base_url=f"{worker.address}/v1", api_key="none", max_retries=0
        ) as client:
            agent = agents.Agent(
                name="a",
                instructions="b",
                tools=[weather],
                model=getattr(agents, api)(model="tiny", openai_client=client),
                model_settings=agents.ModelSettings(
                    tool_choice="required", parallel_tool_calls=False, max_tokens=300
                ),
                tool_use_behavior="stop_on_first_tool",
            )
            return await agents.Runner.run(agent, "a")

    assert asyncio.run(run_agent()).final_output == "rain"
    assert len(cities) == 1
    assert cities[0] in CITIES


def test_the_litellm_proxy_passes_answers_on(worker, tmp_path):
    program = os.environ.get("BITNET_TEST_LITELLM") or shutil.which("litellm")
    if program is None:
        pytest.skip("needs litellm's proxy in an environment of its own: BITNET_TEST_LITELLM")
    routes = {"chat": f"{worker.address}/v1", "ollama": worker.address}
    models = [
        {"model_name": "chat", "litellm_params": {
            "model": "openai/tiny", "api_base": routes["chat"], "api_key": "none"}},
        {"model_name": "ollama", "litellm_params": {
            "model": "ollama_chat/tiny", "api_base": routes["ollama"]}},
    ]  # fmt: skip
    config = tmp_path / "proxy.json"
    port = free_port()
    config.write_text(json.dumps({"model_list": models}))  # a subset of YAML
    log = tmp_path / "proxy.log"
    environment = os.environ | {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with log.open("wb") as output, subprocess.Popen(
        [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
        stdout=output, stderr=output, env=environment,
    ) as proxy:  # fmt: skip
        try:
            until(lambda: _lives(f"http://127.0.0.1:{port}/health/liveliness", proxy, log))
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}", api_key=KEY) as client:
                for name in routes:
                    request = {"model": name, "max_tokens": 8, "temperature": 0,
                             "messages": [{"role": "user", "content": "a"}]}  # fmt: skip
                    whole = client.chat.completions.create(**request)
                    chunks = client.chat.completions.create(**request, stream=True)
                    parts = [one.choices[0].delta.content or "" for one in chunks if one.choices]
                    assert "".join(parts) == whole.choices[0].message.content != ""
                    assert whole.usage.completion_tokens <= 8
        finally:
            proxy.terminate()
            proxy.wait(PATIENCE_S)


def _lives(address, proxy, log):
    """True once the proxy at *address* answers; its process must not end before."""
    assert proxy.poll() is None, log.read_text()[-2000:]
    try:
        return httpx.get(address, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False
