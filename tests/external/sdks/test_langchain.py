"""LangChain's own tests of chat models, over chat completions, Responses and Messages."""

from __future__ import annotations

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from conftest import URLS

COMMON = {"model": "m", "api_key": "unused", "max_retries": 0, "timeout": 30, "stream_usage": True}


class ChatModelTests(ChatModelIntegrationTests):
    """What the models of all protocols are tried with."""

    kind = "text"
    __test__ = False

    @property
    def model_override_value(self):
        return "another"

    @property
    def supports_image_inputs(self):
        return True

    @property
    def supports_image_tool_message(self):
        return True


class OverOpenAI(ChatModelTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def supports_json_mode(self):
        return True


class OverChat(OverOpenAI):
    @property
    def chat_model_params(self):
        return {**COMMON, "base_url": URLS[self.kind]}


class OverResponses(OverOpenAI):
    @property
    def chat_model_params(self):
        return {**COMMON, "base_url": URLS[self.kind], "use_responses_api": True}


class OverMessages(ChatModelTests):
    @property
    def chat_model_class(self):
        return ChatAnthropic

    @property
    def chat_model_params(self):
        return {**COMMON, "base_url": URLS[self.kind].removesuffix("/v1")}

    @property
    def supports_anthropic_inputs(self):
        return True

    @property
    def supports_pdf_inputs(self):
        return True


for base in (OverChat, OverResponses, OverMessages):
    for kind in URLS:
        name = f"Test{base.__name__}{kind.title()}"
        globals()[name] = type(name, (base,), {"kind": kind, "__test__": True})
