"""A model's server behind TLS: its certificate is checked by the rules of Python's ``ssl``."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing

import pytest
import trustme

from patchbay.errors import UpstreamError
from patchbay.realtime import RealtimeSession, connection
from patchbay.testing.realtime import FakeOpenAI, Quote
from realtime.core.playing import limits
from support.realtime_fakes import FakeGemini

BOUND = 60.0
LIMITS = limits(reconnects=3)


@pytest.fixture
def authority() -> trustme.CA:
    """A private certificate authority that is not trusted yet."""
    return trustme.CA()


@pytest.fixture(autouse=True)
def read_again():
    """Clear the cached TLS context before and after a test."""
    connection.default_ssl_context.cache_clear()
    yield
    connection.default_ssl_context.cache_clear()


def serving(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.fixture
def trusts(authority, tmp_path, monkeypatch):
    """Trust the authority, as an operator does."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


def session(fake) -> RealtimeSession:
    return RealtimeSession(f"{fake.provider}/any", url=fake.url, api_key="a-secret-key", output="text", limits=LIMITS)


async def send_and_read(session: RealtimeSession, text: str) -> str:
    await session.send_text(text)
    outcome = ""
    async with aclosing(session.events()) as events:
        async for event in events:
            if event.type == "text":
                outcome += event.delta
            elif event.type == "response_end":
                return outcome
    raise AssertionError("the session ended")


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])
def test_certificate_of_an_authority_in_ssl_cert_file_is_trusted(provider, authority, trusts):
    async def talk(fake) -> str:
        async with session(fake) as one:
            return await send_and_read(one, "hello")

    with provider([Quote()], tls=serving(authority)) as fake:
        assert fake.url.startswith("wss://")
        assert "I was told: hello" == asyncio.run(asyncio.wait_for(talk(fake), BOUND))
        assert [] == fake.violations


@pytest.mark.parametrize("why", ["no authority that is trusted", "a name that is not its own"])
def test_server_with_another_certificate_is_refused_without_the_key(why, authority, request):
    if why == "a name that is not its own":
        request.getfixturevalue("trusts")
    tls = serving(authority, "elsewhere.example" if why == "a name that is not its own" else "127.0.0.1")

    async def refused(fake) -> str:
        one = session(fake)
        with pytest.raises(UpstreamError) as error:
            await one.connect()
        assert not one.is_open
        return str(error.value)

    with FakeOpenAI(tls=tls) as fake:
        text = asyncio.run(asyncio.wait_for(refused(fake), BOUND))
        assert (0, 0) == (fake.attempts, fake.connections)
        assert f"certificate of the model's server at {fake.url} is not trusted" in text
        assert "SSL_CERT_FILE" in text
        assert "secret" not in text


def test_server_whose_certificate_becomes_untrusted_is_abandoned(authority, trusts, monkeypatch, tmp_path):
    async def talk(port: int) -> list[str]:
        with FakeOpenAI([Quote()], tls=serving(authority), port=port) as fake:
            one = session(fake)
            await one.connect()
            await send_and_read(one, "hello")
            port = int(fake.address.partition(":")[2])
        with FakeOpenAI([Quote()], tls=serving(trustme.CA()), port=port) as other:
            outcome = [event async for event in one.events()]
            assert 0 == other.connections
        await one.close()
        return [str(event.error) for event in outcome if event.type == "error"]

    errors = asyncio.run(asyncio.wait_for(talk(0), BOUND))
    assert 1 <= len(errors) <= LIMITS.reconnects + 1
    assert "is not trusted: unable to get local issuer certificate. A" in errors[-1]
