"""The settings that point a client at a proxy: ``patchbay proxy --print-env CLIENT``.

``make clients`` runs coding agents with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import Final

from patchbay.errors import ConfigurationError


@dataclass(frozen=True)
class ClientSettings:
    """A client's environment variables, its shell command, and a file in the home folder with its text."""

    variables: dict[str, str]
    command: str = ""
    file: str = ""
    text: str = ""

    def lines(self) -> str:
        """Return the settings as text to copy."""
        exports = [f"export {name}={value}" for name, value in self.variables.items()]
        shell = "\n".join([*exports, *([self.command] if self.command else [])]) + "\n"
        return f"# ~/{self.file}\n{self.text}\n# in the shell\n{shell}" if self.file else shell


_CODEX: Final = """\
model = "$model"
model_provider = "patchbay"

[model_providers.patchbay]
name = "Patchbay"
base_url = "$base"
wire_api = "responses"
env_key = "PATCHBAY_KEY"
"""
_CONTINUE: Final = """\
name: Patchbay
version: 1.0.0
schema: v1
models:
  - name: $model
    provider: openai
    model: $model
    apiBase: $base
    apiKey: $key
    capabilities: [tool_use]
"""
_OPENCODE: Final = """\
{
  "model": "patchbay/$model",
  "provider": {
    "patchbay": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$base", "apiKey": "{env:PATCHBAY_KEY}"},
      "models": {"$model": {}}
    }
  }
}
"""
_PI: Final = """\
{
  "providers": {
    "patchbay": {"baseUrl": "$base", "api": "openai-completions", "apiKey": "$key", "models": [{"id": "$model"}]}
  }
}
"""
_OPENAI: Final = {"OPENAI_BASE_URL": "$base", "OPENAI_API_KEY": "$key"}
_LITELLM: Final = {"OPENAI_API_BASE": "$base", "OPENAI_API_KEY": "$key"}
CLIENTS: Final = {
    "aider": ClientSettings(_LITELLM, "aider --model openai/$model"),
    "claude": ClientSettings(
        {"ANTHROPIC_BASE_URL": "$root", "ANTHROPIC_API_KEY": "$key", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        "claude --model $model",
    ),
    "cline": ClientSettings({}, "cline auth --provider openai --apikey $key --modelid $model --baseurl $base"),
    "codex": ClientSettings({"PATCHBAY_KEY": "$key"}, "codex", ".codex/config.toml", _CODEX),
    "continue": ClientSettings({}, "cn", ".continue/config.yaml", _CONTINUE),
    "gemini": ClientSettings(
        {"GOOGLE_GEMINI_BASE_URL": "$origin", "GEMINI_API_KEY": "$key"},
        "gemini --model $model",
        ".gemini/settings.json",
        '{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n',
    ),
    "mini-swe-agent": ClientSettings(
        {**_LITELLM, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}, "mini --model openai/$model"
    ),
    "openai": ClientSettings(_OPENAI),
    "opencode": ClientSettings({"PATCHBAY_KEY": "$key"}, "opencode", ".config/opencode/opencode.json", _OPENCODE),
    "pi": ClientSettings({}, "pi --provider patchbay --model $model", ".pi/agent/models.json", _PI),
    "qwen": ClientSettings({**_OPENAI, "OPENAI_MODEL": "$model"}, "qwen --auth-type openai"),
}


def client_settings(client: str, *, origin: str, base_path: str, model: str = "MODEL", key: str = "KEY") -> ClientSettings:
    """Return the settings of ``client`` for the proxy at ``origin``; MODEL and KEY stand for what only the user knows.

    Raises ConfigurationError.
    """
    settings = CLIENTS.get(client.lower())
    if settings is None:
        raise ConfigurationError(f"--print-env {client}: unknown client; known are {', '.join(CLIENTS)}.")
    if "$root" in settings.variables.values() and not base_path.endswith("/v1"):
        raise ConfigurationError(f"--print-env {client}: it asks below /v1, so --base-path must end in /v1, not {base_path}.")
    root = origin + base_path.removesuffix("/v1")
    values = {"origin": origin, "root": root, "base": origin + base_path, "model": model, "key": key}

    def substitute(text: str) -> str:
        return Template(text).substitute(values)

    variables = {name: substitute(value) for name, value in settings.variables.items()}
    return ClientSettings(variables, substitute(settings.command), settings.file, substitute(settings.text))


def origin_of(host: str, port: int) -> str:
    """Return the URL at which clients on the same machine reach a server that listens on ``host``."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}"
