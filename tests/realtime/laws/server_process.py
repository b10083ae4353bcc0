"""A fake in its own process, for tests that measure the memory of the client: prints its URL, and ends with its standard input.

Its arguments: how many sessions there will be, and for TLS a file with its key and certificate.
"""

from __future__ import annotations

import ssl
import sys

from patchbay.testing.realtime import Call, FakeOpenAI, Say

if __name__ == "__main__":
    sessions = int(sys.argv[1])
    steps = [Call("quick", {"text": "some words"}) for _ in range(sessions)] + [Say("Good. " * 20) for _ in range(sessions)]
    tls = None
    if sys.argv[2:]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[2])
    with FakeOpenAI(steps, tls=tls) as fake:
        print(fake.url, flush=True)  # noqa: T201  (its only way to say it)
        sys.stdin.read()
        print(len(fake.violations), len(fake.unanswered), sum(len(call.results) for call in fake.calls), flush=True)  # noqa: T201
