"""A fake of Gemini's API: the paths, the JSON and the events of its wire, every request read by google-genai's own types.

Those types know no field but their own, so a request that Gemini would refuse for its shape is refused here too. Beside that it
keeps what the API is known to be strict about: turns and results that belong together, and signatures sent back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.genai import types

from patchbay.testing import Raw, Recorded, ScriptedUpstream


def text(*pieces: str, **part: Any) -> types.Part:
    return types.Part(text="".join(pieces), **part)


def call(name: str, args: dict[str, Any], *, signature: bytes | None = None, id: str | None = None) -> types.Part:  # noqa: A002
    return types.Part(function_call=types.FunctionCall(name=name, args=args, id=id), thought_signature=signature)


def response(*parts: types.Part, finish: str | None = "STOP", message: str | None = None, **counts: int) -> dict[str, Any]:
    """One answer, or one piece of it, as it goes over the wire."""
    made = types.GenerateContentResponse(
        candidates=[
            types.Candidate(
                content=types.Content(role="model", parts=list(parts)) if parts else None,
                finish_reason=types.FinishReason(finish) if finish else None,
                finish_message=message,
                index=0,
            )
        ],
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            **({"prompt_token_count": 7, "candidates_token_count": 3, "total_token_count": 10} | counts)
        ),
    )
    return made.model_dump(mode="json", by_alias=True, exclude_none=True)


def error(code: int, message: str, status: str = "INVALID_ARGUMENT") -> Raw:
    body = json.dumps({"error": {"code": code, "message": message, "status": status}}).encode()
    return Raw([body], status=code, content_type="application/json")


class GeminiServer(ScriptedUpstream):
    """Answers are lists of pieces (``response``), or Raw; a function of the request's body gives one."""

    def __init__(self, script: Any, *, tools: bool = True, system: bool = True, signatures: bool = False) -> None:
        super().__init__(script)
        self._takes_tools = tools
        self._takes_system = system
        self._wants_signatures = signatures

    @property
    def base_url(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.json for request in self.requests]

    def _answer(self, request: Recorded) -> Raw:
        body = request.json
        model, _, method = request.path.rpartition("/")[2].partition(":")
        try:
            self._check(body)
        except ValueError as problem:
            return error(400, str(problem))
        if not self._takes_tools and body.get("tools"):
            return error(400, f"Function calling is not enabled for models/{model}")
        if not self._takes_system and body.get("systemInstruction"):
            return error(400, f"Developer instruction is not enabled for models/{model}")
        answer = self._script(body) if callable(self._script) else self._script[self._played]
        self._played += 1
        if isinstance(answer, Raw):
            return answer
        pieces = answer if isinstance(answer, list) else [answer]
        if method == "streamGenerateContent":
            assert "alt=sse" in request.query
            return Raw([b"data: " + json.dumps(piece).encode() + b"\r\n\r\n" for piece in pieces])
        assert method == "generateContent"
        (whole,) = pieces
        return Raw([json.dumps(whole).encode()], content_type="application/json")

    def _check(self, body: dict[str, Any]) -> None:
        known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
        if body.keys() - known:
            raise ValueError(f"Unknown name {sorted(body.keys() - known)}")
        contents = [types.Content.model_validate(content) for content in body["contents"]]
        types.GenerationConfig.model_validate(body.get("generationConfig", {}))
        types.ToolConfig.model_validate(body.get("toolConfig", {}))
        for tool in body.get("tools", ()):
            for declaration in types.Tool.model_validate(tool).function_declarations or ():
                if declaration.parameters is not None and not declaration.parameters.properties:
                    raise ValueError("parameters.properties: should be non-empty for OBJECT type")
        self._check_turns(contents)

    def _check_turns(self, contents: Sequence[types.Content]) -> None:
        if not contents:
            raise ValueError("contents are required")
        for before, content in zip([None, *contents], contents, strict=False):
            if not content.parts:
                raise ValueError("contents.parts must not be empty.")
            calls = [part for part in content.parts if part.function_call]
            results = [part for part in content.parts if part.function_response]
            if calls and (before is None or before.role != "user"):
                raise ValueError("Please ensure that function call turn comes immediately after a user turn")
            asked = [part.function_call for part in before.parts or () if part.function_call] if before else []
            if (results or asked) and len(results) != len(asked):
                raise ValueError("the number of function response parts is equal to the number of function call parts")
            if [result.function_response.name for result in results] != [call.name for call in asked]:
                raise ValueError("function response names differ")
            if calls and self._wants_signatures and not calls[0].thought_signature:
                raise ValueError("Function call is missing a thought_signature in functionCall parts.")
