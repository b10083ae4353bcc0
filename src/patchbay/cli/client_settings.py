"""Lines that point a coding agent at a proxy: ``patchbay proxy --print-env CLIENT``."""

from __future__ import annotations

from typing import Final

from patchbay.errors import ConfigurationError

_CLIENTS: Final = {
    "claude": """\
export ANTHROPIC_BASE_URL={origin}
export ANTHROPIC_API_KEY={key}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude --model MODEL
""",
    "codex": """\
# ~/.codex/config.toml
model = "MODEL"
model_provider = "patchbay"

[model_providers.patchbay]
name = "Patchbay"
base_url = "{base}"
wire_api = "responses"
env_key = "PATCHBAY_KEY"

# in the shell
export PATCHBAY_KEY={key}
codex
""",
    "gemini": """\
# ~/.gemini/settings.json
{{"security": {{"auth": {{"selectedType": "gemini-api-key"}}}}}}

# in the shell
export GOOGLE_GEMINI_BASE_URL={origin}
export GEMINI_API_KEY={key}
gemini --model MODEL
""",
    "openai": """\
export OPENAI_BASE_URL={base}
export OPENAI_API_KEY={key}
""",
    "qwen": """\
export OPENAI_BASE_URL={base}
export OPENAI_API_KEY={key}
export OPENAI_MODEL=MODEL
qwen --auth-type openai
""",
}


def client_settings(client: str, *, host: str, port: int, base_path: str) -> str:
    """Return the lines for ``client``; MODEL and KEY stand for what only the user knows. Raises ConfigurationError."""
    template = _CLIENTS.get(client.lower())
    if template is None:
        raise ConfigurationError(f"--print-env {client}: unknown client; known are {', '.join(_CLIENTS)}.")
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    origin = f"http://{name}:{port}"
    return template.format(origin=origin, base=origin + base_path, key="KEY")
