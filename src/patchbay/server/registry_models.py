"""Bodies of ``/api/tools``: what is validated, and what ``/openapi.json`` describes.

Unknown fields are ignored and numbers may come as text, as the seeds' clients were always allowed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, RootModel, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from patchbay.errors import ConfigurationError
from patchbay.schema.arguments import MAX_DEPTH, deeper_than
from patchbay.server.callbacks import read_callback_url
from patchbay.tools import well_formed
from patchbay.tools.registry import MAX_TIMEOUT
from patchbay.tools.tool import ANNOTATION_NAME, MOST_ANNOTATIONS, checked_annotations
from patchbay.types import EMPTY_PARAMETERS


def _whole(text: str) -> str:
    """Reject lone surrogates, as pydantic does where a text has a limit: no list with it could be encoded."""
    if well_formed(text) != text:
        raise PydanticKnownError("string_unicode")
    return text


Text = Annotated[str, AfterValidator(_whole)]
Name = Annotated[str, Field(min_length=1, max_length=64, description="What models call the tool by.")]
Role = Annotated[Text | None, Field(description="The role that is meant; null or empty for all of them.")]
Secret = Annotated[str | None, Field(max_length=256, description="What only the tool's owner and the server know.")]


_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_CALLBACK_URL = rf"^https?://(localhost|127(\.{_OCTET}){{3}}|\[::1\])(:{_PORT})?([/?#][^\x00-\x20\x7f-\xa0\s\\]*)?$"
"""The allowed URLs, for the OpenAPI document; ``read_callback_url`` has the rule, which accepts more spellings."""


class RegisterBody(BaseModel):
    """A tool that answers its calls at a URL."""

    name: Annotated[Name, Field(json_schema_extra={"pattern": r"\S"})]
    description: Text = Field("", description="What models are told the tool is for.")
    parameters: dict[str, Any] = Field(
        default_factory=lambda: dict(EMPTY_PARAMETERS), description="JSON Schema of the arguments. Kept as it is."
    )
    callback_url: str = Field(
        min_length=1,
        description="Where calls are POSTed to: http or https, on this machine, and not at this server's own port.",
        json_schema_extra={"pattern": _CALLBACK_URL},
    )
    role: Role = None
    source: Text = Field("external", description="What the owner calls itself; `clear` goes by it.")
    timeout_seconds: float = Field(
        30.0, gt=0, le=MAX_TIMEOUT, allow_inf_nan=False, description="How long one call may take in all, in seconds."
    )
    secret: Secret = None
    annotations: dict[str, bool] = Field(
        default_factory=dict,
        max_length=MOST_ANNOTATIONS,
        description="What the tool says of itself, for approvals: `read_only`, `destructive`, `idempotent`, `open_world`, or as "
        "MCP calls them (`readOnlyHint`, ...), or words of your own. A policy believes what makes it ask or deny.",
        json_schema_extra={"propertyNames": {"pattern": ANNOTATION_NAME}},
    )

    title: Text = Field("", max_length=200, description="The tool's name for people, for MCP clients.")
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of the results, for MCP clients: results that do not match it are errors there."
    )

    @field_validator("name")
    @classmethod
    def _not_blank(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("name must not be blank")
        return name

    @field_validator("parameters", "output_schema")
    @classmethod
    def _plain_json(cls, schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        """Reject what cannot be encoded: it would break every list."""
        if deeper_than(schema, MAX_DEPTH):
            raise ValueError(f"{info.field_name} must not be nested more than {MAX_DEPTH} levels deep")
        try:
            json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
        except ValueError:
            raise ValueError(f"{info.field_name} must be JSON: no NaN, no Infinity, no lone surrogates") from None
        return schema

    @field_validator("annotations", mode="before")
    @classmethod
    def _check_annotations(cls, annotations: Any) -> dict[str, bool]:
        try:
            return checked_annotations(annotations)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    @field_validator("callback_url")
    @classmethod
    def _on_this_machine(cls, callback_url: str) -> str:
        read_callback_url(callback_url)
        return callback_url


class UnregisterBody(BaseModel):
    """A tool to be taken away."""

    name: Name
    role: Role = None
    expected_source: Text | None = Field(None, description="Only where the tool is this source's.")
    secret: Secret = None


class ClearBody(BaseModel):
    """A source whose tools are to be taken away."""

    source: str = Field(min_length=1, description="Exactly this source.")
    role: Role = None
    secret: Secret = None


class CallBody(BaseModel):
    """A call to be carried out as if a model had made it."""

    name: str = Field(min_length=1, description="The tool's name.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The arguments.")
    raw_arguments: str | None = Field(None, description="The arguments as a model wrote them, in the place of `arguments`.")
    role: Role = Field(None, description="Whose tools; null or empty for the first role.")
    call_id: str = Field("", max_length=256, description="The call's id; empty for a new one.")
    idempotency_key: str | None = Field(
        None,
        pattern=r"^[\x21-\x7e]{1,256}$",
        description="Sent on as `Idempotency-Key`. A plugin's tool runs once for each key, however often the call is made. It "
        "goes on for 60 s when its caller has left or the server has died: the same call under its key then gets its result.",
    )


class FailedRole(BaseModel):
    """A role for which it was not done; with the code `sync_failed` it was done, and its live session was not told of it yet."""

    role: str
    error: str
    code: str
    owned_by: str | None = Field(None, description="Where another source has the name: which.")


class RefusedRole(BaseModel):
    """A role whose tool was left alone, since it is another source's."""

    role: str
    owned_by: str


class Answer(BaseModel):
    """What all answers have. Look at `ok`: what could not be done is told with status 200."""

    ok: bool
    instance_id: str = Field(description="Another one after each start of the server.")
    revision: int = Field(description="Grows with every change of the registry.")


class Changed(Answer):
    """What became of a change."""

    affected_roles: list[str]
    failed_roles: list[FailedRole]
    pending_roles: list[str] = Field(description="Roles with a live session that was not told yet; it is told again by itself.")
    stored: bool = Field(description="Whether it will outlive the server.")
    not_stored: str | None = Field(None, description="Why it is not stored though the server has a store; it is tried again.")


class Registered(Changed):
    """What became of a registration."""

    registered: str
    secret: str | None = Field(None, description="The key of the signatures that calls of the tool carry.")
    error: str | None = None
    warnings: list[str] = Field(
        default_factory=list, description="What its owner should know, if anything: why no model is told of the tool."
    )


class Unregistered(Changed):
    """What became of taking a tool away."""

    removed: bool
    name: str
    refused_roles: list[RefusedRole]


class Cleared(Changed):
    """What became of taking a source's tools away."""

    removed: int
    source: str
    refused_roles: list[RefusedRole]


class ListedTool(BaseModel):
    """A tool, as a role has it."""

    name: str
    description: str
    source: str
    callback_url: str | None
    is_remote: bool
    parameters: dict[str, Any]
    timeout_seconds: float | None
    annotations: dict[str, Any] = Field(description="What it says of itself: `read_only`, `destructive`, ...")
    role: str | None = Field(description="The role it was registered for; null for all.")
    state: Literal["active", "hidden"] = Field(description="`hidden` while nobody answers at its callback_url.")
    problem: str | None = Field(description="Why no model is told of the tool: what is wrong with its schema; null if nothing.")


class Listing(Answer):
    """The tools by role."""

    tools_by_role: dict[str, list[ListedTool]]
    pending_roles: list[str] = Field(description="Roles with a live session that was not told of the last change yet.")
    etag: str = Field(description="Goes into If-None-Match.")
    etags_by_role: dict[str, str] = Field(description="Digests of the lists, the same after a restart if the lists are.")


class Called(Answer):
    """The result of a call."""

    name: str
    role: str
    call_id: str
    output: Any = Field(None, description="What the tool gave back; null where it failed.")
    content: str = Field(description="What a model would be shown.")
    is_error: bool
    error: str | None = None
    code: str | None = None
    ran: Literal["no", "yes", "unknown"] | None = Field(
        None, description="Of a call that failed: whether the tool ran. `unknown`: it may have run, in part or to its end."
    )
    seconds: float


class Health(BaseModel):
    """How the server is."""

    status: Literal["ok", "degraded"]
    problem: str | None = Field(None, description="What is wrong: why changes of the tools are not stored at the moment.")


class Refused(BaseModel):
    """Why a request was turned away."""

    detail: str
    error_code: str
    hint: str | None = Field(None, description="The setting of the server that would let it in.")


class HostRefused(BaseModel):
    """Why a request was turned away by its Host header."""

    ok: bool
    error_code: str
    error: str
    hint: str = Field(description="The setting of the server that would let it in.")


class BadRequest(RootModel[HostRefused | Refused]):
    """Why a request was turned away by its head."""


class NoSuchRole(BaseModel):
    """Which role there is not."""

    detail: str
    code: str


class Fault(BaseModel):
    """What is wrong with a body, and where. `input` is what stands there, cut short."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any = None
    ctx: dict[str, Any] | None = None


class Unfit(BaseModel):
    """All that is wrong with a body."""

    detail: list[Fault]
