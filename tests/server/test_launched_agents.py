"""Coding agents as people install them, each with one task: read a file, edit it, run a command.

What the model writes is scripted, except in the last test; the agents, their requests, templates,
tools and streams are real. Home and settings are empty, and no address but the worker's is told to
them, except in the test of settings that name another server.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_model import script, scripted_gguf, write_call
from server_process import listening

from bitnet.commands.agents import AGENTS, Endpoint
from bitnet.commands.launch import write_files
from bitnet.runtime.answer import Answer
from bitnet.server import exchange

LIMIT_S = 1200  # of a whole task; some take minutes on a busy machine
TASK = "Make the colour in note.txt blue, and copy the file to copy.txt."
BEFORE = "The colour is red.\n"
AFTER = "The colour is blue.\n"
DONE = "The colour is blue now."
COPY = "cat note.txt > copy.txt"
REPLACEMENT = f"note.txt\n```text\n<<<<<<< SEARCH\n{BEFORE}=======\n{AFTER}>>>>>>> REPLACE\n```\n"


def steps_of(agent, note):
    """Answers of the model: the first, and one after each result of a tool."""
    if agent == "claude":
        return [
            write_call("Read", file_path=note),
            write_call("Edit", file_path=note, old_string="red", new_string="blue"),
            write_call("Bash", command=COPY, description="Copy the note"),
            DONE,
        ]
    if agent == "codex":
        commands = ("cat note.txt", "sed -i s/red/blue/ note.txt", COPY)
        return [*(write_call("exec_command", cmd=command) for command in commands), DONE]
    if agent == "opencode":
        return [
            write_call("read", filePath=note),
            write_call("edit", filePath=note, oldString="red", newString="blue"),
            write_call("bash", command=COPY, description="Copy the note"),
            DONE,
        ]
    if agent == "cline":
        return [
            write_call("read_files", files=[{"path": note}]),
            write_call("editor", path=note, old_text="red", new_text="blue"),
            write_call("run_commands", commands=[COPY]),
            DONE,
        ]
    if agent == "continue":
        return [
            write_call("Read", filepath=note),
            write_call("Edit", file_path=note, old_string="red", new_string="blue"),
            write_call("Bash", command=COPY),
            DONE,
        ]
    if agent == "qwen":
        return [
            write_call("read_file", file_path=note),
            write_call("edit", file_path=note, old_string="red", new_string="blue"),
            write_call("run_shell_command", command=COPY, is_background=False),
            DONE,
        ]
    assert agent == "aider"  # which offers no tools
    return [DONE]


#: Words in the output of an agent when a small model did not solve its task.
ENDS = {
    "claude": "context",
    "codex": "max_output_tokens",
    "opencode": "tiny",
    "aider": "token limit",
    "cline": "maximum output token limit",
    "continue": "",  # none of its own: the model's answer is all
    "qwen": "the context holds",
}
#: Agents whose prompt is longer than the context of a small model, and is refused.
REFUSED = ("claude", "qwen")
#: Agents that show the text of the model's answers.
SHOWING = ("aider", "cline", "continue", "opencode")
ARGUMENTS = {
    "claude": ["-p", TASK, "--permission-mode", "acceptEdits", "--allowedTools", "Read,Edit,Bash"],
    "codex": ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", TASK],
    "opencode": ["run", TASK],
    "aider": ["--yes-always", "--no-git", "--edit-format", "diff", "--message", TASK, "note.txt"],
    "cline": [TASK],
    "continue": ["--auto", "-p", TASK],
    "qwen": ["--yolo", TASK],
}


def program_of(agent):
    """The installed program of *agent*."""
    folders = os.environ.get("BITNET_TEST_AGENTS", "")
    program = shutil.which(AGENTS[agent].program, path=folders) if folders else None
    if program is None:
        pytest.skip(f"needs {agent} in a folder of BITNET_TEST_AGENTS: {AGENTS[agent].install}")
    return program


def folders_for(place):
    """Make an agent's home and its working folder below *place*; return the second."""
    for name in ("work", "home"):
        (place / name).mkdir()
    return place / "work"


def run_agent(agent, program, address, place, *, key="none"):
    """Run the task of *agent* in folders below *place*: the finished process, and its output."""
    setup = AGENTS[agent].set_up(Endpoint(address, key), "tiny", place / "settings")
    write_files(setup, place / "settings")
    environment = {
        "PATH": f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "TMPDIR": str(place),
        **setup.environment,
    }
    done = subprocess.run(
        [program, *setup.arguments, *ARGUMENTS[agent]],
        cwd=place / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done, f"{done.stdout}\n{done.stderr}"


def record_answers(monkeypatch):
    """The answers that a worker writes from now on, as a list that grows."""
    answers = []

    class RecordedAnswer(Answer):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            answers.append(self)

    monkeypatch.setattr(exchange, "Answer", RecordedAnswer)
    return answers


def never_end(model):
    """Have *model* choose no token that would end its answer."""
    ends = frozenset(model.tokenizer.stop_ids)
    assert ends
    model.generation = replace(model.generation, suppressed=ends)


def finish_task(agent, program, place, monkeypatch, *, key=""):
    """Have the *program* finish the task in folders below *place*: its output, and all prompts.

    The model's answers are scripted, and its server requires the *key*, unless that is empty.
    """
    note = place / "work" / "note.txt"
    note.write_text(BEFORE)
    path = scripted_gguf(place, monkeypatch)
    options = {"name": "tiny", "max_output_tokens": 4000, "max_batch": 4}
    with listening(path, app_options={"api_key": key} if key else {}, **options) as worker:
        prompts = script(
            monkeypatch,
            worker.slot.model.tokenizer,
            steps_of(agent, str(note)),
            without_tools=REPLACEMENT if agent == "aider" else "A title",
        )
        done, output = run_agent(agent, program, worker.address, place, key=key or "none")
    assert done.returncode == 0, output
    assert note.read_text() == AFTER, output
    assert prompts
    return output, prompts


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_reads_edits_runs_and_finishes(agent, tmp_path, monkeypatch):
    program = program_of(agent)
    work = folders_for(tmp_path)
    output, prompts = finish_task(agent, program, tmp_path, monkeypatch)
    if agent != "aider":  # which runs no commands without being asked by a person
        assert (work / "copy.txt").read_text() == AFTER, output
        assert DONE in output
        assert len([prompt for prompt in prompts if "<tools>" in prompt]) >= 4


ELSEWHERE = "http://127.0.0.1:9"
#: Settings of a user that name another server, by their paths in the home and the working folder.
USERS_FILES = {
    "claude": {"home/.claude/settings.json": {"env": {"ANTHROPIC_BASE_URL": ELSEWHERE}}},
    "codex": {
        "home/.codex/config.toml": (
            'model_provider = "mine"\n[model_providers.mine]\nname = "mine"\n'
            f'base_url = "{ELSEWHERE}/v1"\nwire_api = "responses"\n'
        )
    },
    "opencode": {
        "home/.config/opencode/opencode.json": {
            "model": "mine/m",
            "provider": {
                "mine": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": {"baseURL": f"{ELSEWHERE}/v1"},
                    "models": {"m": {}},
                }
            },
        }
    },
    "aider": {
        "home/.aider.conf.yml": {
            "openai-api-base": ELSEWHERE,
            "openai-api-key": "sk-mine",
            "weak-model": "anthropic/claude-3-5-haiku",
        },
        "home/.env": f"OPENAI_API_BASE={ELSEWHERE}\nOPENAI_API_KEY=sk-mine\n",
        "work/.env": f"OPENAI_API_BASE={ELSEWHERE}\nOPENAI_API_KEY=sk-mine\n",
    },
    "cline": {
        "home/.cline/data/settings/providers.json": {"version": 1, "lastUsedProvider": "anthropic"}
    },
    "continue": {
        "home/.continue/config.yaml": {
            "name": "mine",
            "version": "1.0.0",
            "schema": "v1",
            "models": [
                {"name": "m", "provider": "openai", "model": "m", "apiBase": f"{ELSEWHERE}/v1"}
            ],
        }
    },
    "qwen": {
        "home/.qwen/settings.json": {
            "security": {"auth": {"selectedType": "openai", "baseUrl": f"{ELSEWHERE}/v1"}},
            "model": {"name": "mine"},
        }
    },
}


@pytest.mark.parametrize("agent", AGENTS)
def test_settings_of_a_user_send_no_agent_to_another_server(agent, tmp_path, monkeypatch):
    program = program_of(agent)
    folders_for(tmp_path)
    for name, content in USERS_FILES[agent].items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    finish_task(agent, program, tmp_path, monkeypatch, key="ours")


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_ends_with_a_real_small_model(agent, tmp_path, test_models, monkeypatch):
    """A model of 135 million parameters cannot solve the task, but reads the prompt and answers.

    The prompts of Claude Code and Qwen Code are longer than its context, which they are told; none
    of the others gets a call or an edit from it, and each ends by itself. Prompts have the date and
    random ids, so that answers differ; each is cut at its length limit.
    """
    program = program_of(agent)
    work = folders_for(tmp_path)
    note = work / "note.txt"
    note.write_text(BEFORE)
    answers = record_answers(monkeypatch)
    path = test_models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with listening(path, name="tiny", max_output_tokens=48) as worker:
        never_end(worker.slot.model)
        _, output = run_agent(agent, program, worker.address, tmp_path)
        assert worker.http.get("/health/ready").status_code == 200
        statuses = set(re.findall(r'status="(\d+)"', worker.http.get("/metrics").text))
    assert ("400" in statuses) == (agent in REFUSED), output
    assert not {status for status in statuses if status >= "500"}, output
    assert ENDS[agent] in output, output
    assert note.read_text() == BEFORE
    if agent not in REFUSED:
        assert {answer.finish_reason for answer in answers} == {"length"}
        assert not any(answer.calls for answer in answers)
    if agent in SHOWING:
        last = answers[-1].text.split()
        assert last
        assert " ".join(last[:4]) in " ".join(output.split()), (last, output)
