"""Stands in for xllamacpp: a server whose health can be asked, or which fails as the text of its model file says."""

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace


class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class _Http(ThreadingHTTPServer):
    allow_reuse_port = True


class Server:
    def __init__(self, parameters):
        wish = Path(parameters.model.path).read_text().removeprefix("GGUF ")
        if wish == "unreadable":
            sys.stderr.write("0.00.015.343 E gguf_init: no such architecture\n" * 2)
            raise RuntimeError("Failed to init server")
        http = _Http(("127.0.0.1", parameters.port), _Handler)
        self.listening_address = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        if wish == "mortal":
            sys.stderr.write("0.00.015.343 E srv GGML_ASSERT failed\n")
            threading.Timer(0.01, os._exit, [3]).start()
