"""Request and response bodies of ``/api/tools``, for validation and ``/openapi.json``.

Unknown fields are ignored and numbers may be strings, for compatibility with N.E.K.O's clients.
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
    """Reject lone surrogates, which could not be encoded; pydantic itself rejects them only in strings with a limit."""
    if well_formed(text) != text:
        raise PydanticKnownError("string_unicode")
    return text


Text = Annotated[str, AfterValidator(_whole)]
Name = Annotated[str, Field(min_length=1, max_length=64, description="The tool's name for models.")]
Role = Annotated[Text | None, Field(description="A role; null or empty for all roles.")]
Instance = Annotated[
    Text | None, Field(max_length=64, description="Only the replica with this instance; null for all, and for what is none.")
]
Secret = Annotated[str | None, Field(max_length=256, description="A secret shared by the tool's owner and the server.")]


_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_CALLBACK_URL = rf"^https?://(localhost|127(\.{_OCTET}){{3}}|\[::1\])(:{_PORT})?([/?#][^\x00-\x20\x7f-\xa0\s\\]*)?$"
"""The allowed URLs, for the OpenAPI document; ``read_callback_url`` has the rule, which accepts more spellings."""


class RegisterBody(BaseModel):
    """A tool whose calls are sent to a URL."""

    name: Annotated[Name, Field(json_schema_extra={"pattern": r"\S"})]
    description: Text = Field("", description="The tool's description for models.")
    parameters: dict[str, Any] = Field(
        default_factory=lambda: dict(EMPTY_PARAMETERS), description="JSON Schema of the arguments, stored unchanged."
    )
    callback_url: str = Field(
        min_length=1,
        description="The URL that calls are POSTed to: http or https, on this machine or one of `--callback-hosts`, not at this "
        "server's own port.",
        json_schema_extra={"pattern": _CALLBACK_URL},
    )
    role: Role = None
    source: Text = Field("external", description="The name of the tool's owner, which `clear` uses.")
    instance: Text | None = Field(
        None,
        max_length=64,
        description="The name of a replica: registrations of one name, role and source with different instances are one tool, "
        "and a call goes to one of them. Null or empty: this is the tool's only registration.",
    )
    timeout_seconds: float = Field(
        30.0, gt=0, le=MAX_TIMEOUT, allow_inf_nan=False, description="Time limit of one call, in seconds."
    )
    secret: Secret = None
    annotations: dict[str, bool] = Field(
        default_factory=dict,
        max_length=MOST_ANNOTATIONS,
        description="Hints for approval policies: `read_only`, `destructive`, `idempotent`, `open_world`, MCP's names of them "
        "(`readOnlyHint`, ...), or your own. A policy trusts hints that make it ask or deny.",
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
        """Reject schemas that cannot be encoded, which would break every listing."""
        if schema is not None and deeper_than(schema, MAX_DEPTH):
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
    def _can_be_read(cls, callback_url: str) -> str:
        read_callback_url(callback_url, None)  # the route knows which hosts are allowed
        return callback_url


class UnregisterBody(BaseModel):
    """A tool to unregister."""

    name: Name
    role: Role = None
    expected_source: Text | None = Field(None, description="Unregister the tool only if this is its source.")
    instance: Instance = None
    secret: Secret = None


class ClearBody(BaseModel):
    """A source whose tools to unregister."""

    source: str = Field(min_length=1, description="The source, exactly.")
    role: Role = None
    instance: Instance = None
    secret: Secret = None


class CallBody(BaseModel):
    """A call to run as if a model had made it."""

    name: str = Field(min_length=1, description="The tool's name.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The arguments.")
    raw_arguments: str | None = Field(None, description="The arguments as a model wrote them, instead of `arguments`.")
    role: Role = Field(None, description="The role whose tools to use; null or empty for the first role.")
    call_id: str = Field("", max_length=256, description="The call's id; empty for a new one.")
    idempotency_key: str | None = Field(
        None,
        pattern=r"^[\x21-\x7e]{1,256}$",
        description="Sent on as `Idempotency-Key`. A plugin's tool runs once for each key, however often the call is made. It "
        "goes on for 60 s when its caller has left or the server has died: the same call under its key then gets its result.",
    )


class FailedRole(BaseModel):
    """A role that the change failed for; with the code `sync_failed` it succeeded, but its live session does not have it yet."""

    role: str
    error: str
    code: str
    owned_by: str | None = Field(None, description="The source that owns the name, if another one does.")


class RefusedRole(BaseModel):
    """A role whose tool was not changed because another source owns it."""

    role: str
    owned_by: str


class Answer(BaseModel):
    """Common fields of all responses. Check `ok`: a change that failed also has status 200."""

    ok: bool
    instance_id: str = Field(description="Changes with each start; servers with one PostgreSQL database have one.")
    revision: int = Field(description="Increases with every change of the registry.")


class Changed(Answer):
    """The outcome of a change."""

    affected_roles: list[str]
    failed_roles: list[FailedRole]
    pending_roles: list[str] = Field(description="Roles whose live session does not have the change yet; the server retries.")
    stored: bool = Field(description="Whether the change survives a restart of the server.")
    not_stored: str | None = Field(None, description="Why the change is not stored in the server's store; the server retries.")


class Registered(Changed):
    """The outcome of a registration."""

    registered: str
    secret: str | None = Field(None, description="The key that signs the tool's calls.")
    error: str | None = None
    warnings: list[str] = Field(
        default_factory=list, description="Warnings for the tool's owner, such as why it is not offered to models."
    )


class Unregistered(Changed):
    """The outcome of unregistering a tool."""

    removed: bool
    name: str
    refused_roles: list[RefusedRole]


class Cleared(Changed):
    """The outcome of unregistering a source's tools."""

    removed: int
    source: str
    refused_roles: list[RefusedRole]


class ListedInstance(BaseModel):
    """A replica of a tool."""

    instance: str
    callback_url: str = Field(description="With its query only for callers that send the token.")
    state: Literal["active", "hidden"] = Field(description="`hidden` while it does not answer, or is on another machine.")


class ListedTool(BaseModel):
    """A tool of a role."""

    name: str
    description: str
    source: str
    callback_url: str | None = Field(description="With its query only for callers that send the token.")
    is_remote: bool
    parameters: dict[str, Any]
    timeout_seconds: float | None
    annotations: dict[str, Any] = Field(description="Its hints: `read_only`, `destructive`, ...")
    role: str | None = Field(description="The role it was registered for; null for all.")
    state: Literal["active", "hidden"] = Field(description="`hidden` while its callback_url does not answer.")
    problem: str | None = Field(description="The problem of its schema, for which it is not offered to models; null for none.")
    instances: list[ListedInstance] | None = Field(None, description="The replicas of a tool with `instance`.")


class Listing(Answer):
    """The tools by role."""

    tools_by_role: dict[str, list[ListedTool]]
    pending_roles: list[str] = Field(description="Roles whose live session does not have the last change yet.")
    etag: str = Field(description="The value for If-None-Match.")
    etags_by_role: dict[str, str] = Field(description="A digest of each role's list; it survives a restart.")


class ResultFile(BaseModel):
    """An image or a file of a result."""

    url: str = Field(description="Its path on this server.")
    media_type: str
    name: str


class Called(Answer):
    """The result of a call."""

    name: str
    role: str
    call_id: str
    output: Any = Field(None, description="The tool's result; null if it failed.")
    content: str = Field(description="The text that a model would get.")
    is_error: bool
    error: str | None = None
    code: str | None = None
    details: list[str] | None = Field(None, description="For invalid arguments: each fault, with its place as a JSON pointer.")
    files: list[ResultFile] | None = Field(None, description="The images and files of the result, if it has any.")
    ran: Literal["no", "yes", "unknown"] | None = Field(
        None, description="For a failed call: whether the tool ran. `unknown`: it may have run, partly or completely."
    )
    seconds: float


class Health(BaseModel):
    """The health of the server."""

    status: Literal["ok", "degraded"]
    problem: str | None = Field(None, description="The problem: why changes of the tools are not stored at the moment.")


class Refused(BaseModel):
    """Why a request was rejected."""

    detail: str
    error_code: str
    hint: str | None = Field(None, description="The server's setting that would allow the request.")


class HostRefused(BaseModel):
    """Why a request was rejected by its Host header."""

    ok: bool
    error_code: str
    error: str
    hint: str = Field(description="The server's setting that would allow the request.")


class BadRequest(RootModel[HostRefused | Refused]):
    """Why a request was rejected by its headers."""


class NoSuchRole(BaseModel):
    """An unknown role."""

    detail: str
    code: str


class Fault(BaseModel):
    """An error in a body: its location, and the `input` there, shortened."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any = None
    ctx: dict[str, Any] | None = None


class Unfit(BaseModel):
    """All errors in a body."""

    detail: list[Fault]
