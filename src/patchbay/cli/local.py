"""``patchbay local``: a model on llama.cpp's server, and the proxy before it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from patchbay._flags import build
from patchbay.cli.llama_server import LlamaServer, LlamaSettings, require_llama
from patchbay.cli.model_files import SMOLLM2, check_model_file, find_packaged
from patchbay.cli.options import SERVING, Audit, AuditDays, Config, Quiet, Verbose, with_flags
from patchbay.cli.proxy import PROXY_FLAGS, PrintEnv, Store, prepare, print_settings
from patchbay.server.runtime import listen_on
from patchbay.server.settings import ProxySettings, ServeOptions

_MODEL = "Model"
MEMORY_MIB = (340, 440)
"""Measured resident memory of the server with the default model and flags: at the start, and when its caches are full."""


@with_flags(
    (_MODEL, LlamaSettings),
    (_MODEL, ProxySettings, "upstream_timeout"),
    (SERVING, ServeOptions, "host", "port", "drain_timeout", "drain_delay"),
    *PROXY_FLAGS,
)
def local(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.gguf",
            envvar="PATCHBAY_MODEL",
            show_default=False,
            rich_help_panel=_MODEL,
            help=f"File of the model. Default: {SMOLLM2.name}, which is fetched once (93 MB); with it the server takes "
            f"{MEMORY_MIB[0]} to {MEMORY_MIB[1]} MiB of memory.",
        ),
    ] = None,
    print_env: PrintEnv = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: Config = None,
    store: Store = None,
    audit: Audit = None,
    audit_days: AuditDays = 90.0,
    **values: Any,
) -> None:
    """Run a model on this machine, with working tool calls for any client.

    Starts llama.cpp's server with a model, restarts it if it ends, and serves the proxy before it: chat completions, OpenAI
    Responses, Anthropic Messages and Gemini's generateContent. Needs no GPU, no account and no other program.

    The model that is fetched by default has 135 million parameters: it is for trying things out.

    [bold]Examples[/bold]

      patchbay local

      patchbay local --model ~/models/qwen3-8b.gguf --threads 8

      patchbay local --print-env openai
    """  # fmt: skip
    name = SMOLLM2.name if model is None else model.stem
    if print_env is not None:
        print_settings(print_env, values, model=name)
        return
    require_llama()
    settings = build(LlamaSettings, values)
    with LlamaServer() as server:
        start = prepare(
            server.upstream.url,
            {**values, "upstream_key": server.upstream.key},
            verbose=verbose,
            quiet=quiet,
            config=config,
            store=store,
            audit=audit,
            audit_days=audit_days,
            command="local",
            found=[(f"llama.cpp, {name}", server.upstream.url)],
        )
        listen_on(values["host"], values["port"]).close()  # an address that is in use is reported before anything is fetched
        file = check_model_file(model) if model is not None else find_packaged(SMOLLM2)
        print(f"patchbay: loading {file}", file=sys.stderr, flush=True)
        with server.run(file, settings, alias=name):
            sys.exit(start())
