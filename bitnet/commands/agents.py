"""Coding agents that ``launch`` starts, and the settings that make each use a server.

An agent gets environment variables, arguments, and files in a temporary folder. The user's own
settings of the agent, in the home folder, are not changed, and not read except by aider, which
cannot be told to leave them out: its arguments take precedence over them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Setup:
    """Settings of an agent for one run."""

    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # their texts, by path in the folder


class Endpoint(NamedTuple):
    """The server that an agent is to use."""

    address: str  # without ``/v1``
    key: str  # API key; agents need one even for a server that requires none


@dataclass(frozen=True)
class Agent:
    """A coding agent: its program, and the function that makes its settings for a run."""

    program: str
    install: str  # the command that installs it
    set_up: Callable[[Endpoint, str, Path], Setup]  # from a server, a model's name and a folder


def _claude(server: Endpoint, model: str, folder: Path) -> Setup:
    return Setup(
        {
            "ANTHROPIC_BASE_URL": server.address,
            "ANTHROPIC_AUTH_TOKEN": server.key,
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CONFIG_DIR": str(folder),
        }
    )


def _codex(server: Endpoint, model: str, folder: Path) -> Setup:
    variable = "BITNET_SERVER_KEY"
    provider = (
        f'{{name="bitnet", base_url="{server.address}/v1", wire_api="responses", '
        f'env_key="{variable}"}}'
    )
    settings = ['model_provider="bitnet"', f"model_providers.bitnet={provider}"]
    words = [word for setting in settings for word in ("--config", setting)]
    environment = {"CODEX_HOME": str(folder), variable: server.key}
    return Setup(environment, ["--model", model, *words])


def _opencode(server: Endpoint, model: str, folder: Path) -> Setup:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.address}/v1", "apiKey": server.key},
        "models": {model: {}},
    }
    config = {
        "provider": {"bitnet": provider},
        "model": f"bitnet/{model}",
        "small_model": f"bitnet/{model}",
        "autoupdate": False,
        "share": "disabled",
    }
    folders = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return Setup(
        {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            **{name: str(folder / name.lower()) for name in folders},
        }
    )


def _aider(server: Endpoint, model: str, _folder: Path) -> Setup:
    # Files named .aider.conf.yml and .env, of the user or the project, may name other servers, keys
    # and models. Arguments take precedence over both. The key, which other users of the machine
    # would see among the arguments, is in aider's own variable, which replaces OPENAI_API_KEY.
    name = f"openai/{model}"
    arguments = [
        *("--openai-api-base", f"{server.address}/v1"),
        *("--model", name),
        *("--weak-model", name),
        *("--editor-model", name),
        *("--no-show-model-warnings", "--no-show-release-notes"),
    ]
    return Setup(
        {
            "AIDER_OPENAI_API_KEY": server.key,
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        arguments,
    )


def _cline(server: Endpoint, model: str, folder: Path) -> Setup:
    provider = "openai-compatible"
    settings = {
        "provider": provider,
        "apiKey": server.key,
        "model": model,
        "baseUrl": f"{server.address}/v1",
    }
    entry = {
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    document = {
        "version": 1,
        "lastUsedProvider": provider,
        "modes": {},
        "providers": {provider: entry},
    }
    return Setup(
        {"CLINE_NO_AUTO_UPDATE": "1", "DO_NOT_TRACK": "1"},
        ["--data-dir", str(folder), "--config", str(folder)],
        {"settings/providers.json": json.dumps(document)},
    )


def _continue(server: Endpoint, model: str, folder: Path) -> Setup:
    entry = {
        "name": model,
        "provider": "openai",
        "model": model,
        "apiBase": f"{server.address}/v1",
        "apiKey": server.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
    }
    config = {"name": "bitnet", "version": "1.0.0", "schema": "v1", "models": [entry]}
    return Setup(
        {
            "CONTINUE_GLOBAL_DIR": str(folder),
            "CONTINUE_METRICS_ENABLED": "0",
            "CONTINUE_CLI_ENABLE_TELEMETRY": "0",
            "CONTINUE_CLI_AUTO_UPDATED": "1",  # so that it does not update itself
        },
        ["--config", str(folder / "config.yaml")],
        {"config.yaml": json.dumps(config)},  # JSON is YAML
    )


def _qwen(server: Endpoint, model: str, folder: Path) -> Setup:
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    return Setup(
        {
            "OPENAI_BASE_URL": f"{server.address}/v1",
            "OPENAI_API_KEY": server.key,
            "OPENAI_MODEL": model,
            "QWEN_HOME": str(folder),
            "QWEN_RUNTIME_DIR": str(folder),
        },
        ["--auth-type", "openai"],
        {"settings.json": json.dumps(settings)},
    )


#: The agents, by the names that ``launch`` takes.
AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "aider": Agent("aider", "pip install aider-chat", _aider),
    "cline": Agent("cline", "npm install -g cline", _cline),
    "continue": Agent("cn", "npm install -g @continuedev/cli", _continue),
    "qwen": Agent("qwen", "npm install -g @qwen-code/qwen-code", _qwen),
}
