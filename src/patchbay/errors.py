"""The errors that Patchbay raises.

    PatchbayError                      code "patchbay_error"
    ├── InvalidRequestError            ValueError     "invalid_request"      the client's mistake; HTTP 400
    │   └── RequestTooLargeError                      "request_too_large"    HTTP 413
    ├── ConfigurationError             ValueError     "configuration"        an option or flag that cannot work
    ├── UpstreamError                  RuntimeError   "upstream_error"       the model's server failed; HTTP 502
    │   └── UpstreamTimeoutError       TimeoutError   "upstream_timeout"     HTTP 504
    ├── ToolChoiceError                RuntimeError   "tool_choice_unmet"    the model did not obey tool_choice; HTTP 502
    ├── InvalidCallError               RuntimeError   "invalid_call"         a call's arguments are no JSON object; HTTP 502
    ├── ResponseFormatError            RuntimeError   "response_format_unmet" an answer is not the JSON asked for; HTTP 502
    ├── MaxIterationsError             RuntimeError   "max_iterations"       the loop's maximum of rounds
    ├── SessionNotFoundError           LookupError    "session_not_found"    there is no session with this id; HTTP 404
    ├── SessionExistsError             ValueError     "session_exists"       there is one already; HTTP 409
    ├── RunNotFoundError               LookupError    "run_not_found"        there is no durable run with this id; HTTP 404
    ├── RunExistsError                 ValueError     "run_exists"           its id is that of another run; HTTP 409
    ├── UnknownRoleError               LookupError    "unknown_role"         the registry has no such role; HTTP 404
    ├── ToolSyncError                  RuntimeError   "tool_sync_failed"     a session did not get its new tools
    ├── HookAbortError                 RuntimeError   "hook_abort"           a hook ended the turn
    ├── ApprovalNotFoundError          LookupError    "approval_not_found"   no request for approval has this id; HTTP 404
    ├── ApprovalConflictError          ValueError     "approval_conflict"    it is decided, or cannot be decided so; HTTP 409
    ├── ApprovalForbiddenError         PermissionError "approval_forbidden"  the policy lets others decide; HTTP 403
    └── ToolError                      Exception      "tool_error"           one call failed; becomes a result
        ├── UnknownToolError           LookupError    "unknown_tool"
        ├── ToolArgumentsError         ValueError     "invalid_arguments"
        ├── IncompleteCallError        ValueError     "incomplete_call"
        ├── RepeatedCallError          RuntimeError   "repeated_call"        the same call with the same result, once too often
        ├── CallBudgetError            RuntimeError   "call_budget"          the run may make no more calls
        ├── ToolTimeoutError           TimeoutError   "tool_timeout"
        │   └── RunTimeoutError                       "run_timeout"          the time of the whole run was up
        ├── ToolDeniedError            PermissionError "tool_denied"         a hook or an approver refused the call
        ├── HookFailedError            RuntimeError   "hook_failed"          the hook that owns the tool did not answer
        ├── ToolRetry                  Exception      "tool_retry"           raised by tools: try again like this
        └── ToolFailed                 Exception      "tool_failed"          raised by tools: this can not work

Clients repeat a request after a 5xx or a 409 by themselves. ``x-should-retry: false`` prevents that unless the error is
``retryable``: only a failure of the model's server may be transient.

``str(error)`` is for the operator; ``error.for_model`` tells the model what to do next. ``code`` is stable: programs may
compare it.
"""

from __future__ import annotations


class PatchbayError(Exception):
    """The root of the tree. ``status`` is its HTTP status, ``kind`` the ``type`` in OpenAI's error body.

    ``retryable``: the same request may succeed when it is sent again.
    """

    code = "patchbay_error"
    kind = "api_error"
    status = 500
    retryable = False

    @property
    def for_model(self) -> str:
        """The same failure as an instruction to the model."""
        return f"Error: {self}"


class InvalidRequestError(PatchbayError, ValueError):
    """An invalid request of a client. ``param`` is the offending field, if there is one."""

    code = "invalid_request"
    kind = "invalid_request_error"
    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLargeError(InvalidRequestError):
    """The request's body exceeds the limit."""

    code = "request_too_large"
    status = 413


class ConfigurationError(PatchbayError, ValueError):
    """An invalid option or setting."""

    code = "configuration"


class UpstreamError(PatchbayError, RuntimeError):
    """The model's server failed. ``upstream_status`` is its HTTP status (None: no response), ``body`` that of its response."""

    code = "upstream_error"
    kind = "upstream_error"
    status = 502
    retryable = True

    def __init__(self, message: str, *, upstream_status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.upstream_status = upstream_status
        self.body = body
        self.reason = ""
        """What the server said, where the message says more."""


class UpstreamTimeoutError(UpstreamError, TimeoutError):
    """The model's server did not answer in time."""

    code = "upstream_timeout"
    status = 504


class ToolChoiceError(PatchbayError, RuntimeError):
    """The model did not obey ``tool_choice``, nor after retries."""

    code = "tool_choice_unmet"
    kind = "upstream_error"
    status = 502


class InvalidCallError(PatchbayError, RuntimeError):
    """The model wrote a call whose arguments are no JSON object, and cannot be repaired to one, also after retries."""

    code = "invalid_call"
    kind = "upstream_error"
    status = 502


class ResponseFormatError(PatchbayError, RuntimeError):
    """The model's answer does not match ``response_format``, nor after retries."""

    code = "response_format_unmet"
    kind = "upstream_error"
    status = 502


class MaxIterationsError(PatchbayError, RuntimeError):
    """The loop reached its maximum of rounds without an answer."""

    code = "max_iterations"

    def __init__(self, iterations: int) -> None:
        super().__init__(f"No answer after {iterations} iterations (max_iterations).")
        self.iterations = iterations


class SessionNotFoundError(PatchbayError, LookupError):
    """No session with this id exists (any more)."""

    code = "session_not_found"
    kind = "invalid_request_error"
    status = 404

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}.")
        self.session_id = session_id


class SessionExistsError(PatchbayError, ValueError):
    """A session with this id exists already."""

    code = "session_exists"
    kind = "invalid_request_error"
    status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is a session {session_id!r} already.")
        self.session_id = session_id


class RunNotFoundError(PatchbayError, LookupError):
    """No durable run with this id exists."""

    code = "run_not_found"
    kind = "invalid_request_error"
    status = 404

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id[:100]!r}.")
        self.run_id = run_id


class RunExistsError(PatchbayError, ValueError):
    """The id of a durable run is that of another one."""

    code = "run_exists"
    kind = "invalid_request_error"
    status = 409

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is a run {run_id[:100]!r} already, with another message or session.")
        self.run_id = run_id


class UnknownRoleError(PatchbayError, LookupError):
    """The registry has no such role."""

    code = "unknown_role"
    kind = "invalid_request_error"
    status = 404

    def __init__(self, role: str, message: str = "") -> None:
        super().__init__(message or f"unknown role: {role}")
        self.role = role


class ToolSyncError(PatchbayError, RuntimeError):
    """A live session did not get its new tools. They are registered nevertheless, and its next turn has them."""

    code = "tool_sync_failed"


class HookAbortError(PatchbayError, RuntimeError):
    """A hook ended the turn. ``hook`` is its name, ``point`` where it was called; ``hard``: the history is rolled back."""

    code = "hook_abort"
    kind = "hook_error"
    status = 403

    def __init__(self, reason: str, *, hook: str, point: str, hard: bool = False) -> None:
        super().__init__(f"hook requested turn abort{f': {reason}' if reason else ''}")
        self.reason = reason
        self.hook = hook
        self.point = point
        self.hard = hard

    @property
    def for_model(self) -> str:
        """The result of the current call in the history of later turns."""
        return f"Error: {self}."


class ApprovalNotFoundError(PatchbayError, LookupError):
    """No request for approval with this id exists (any more)."""

    code = "approval_not_found"
    kind = "invalid_request_error"
    status = 404

    def __init__(self, request_id: str) -> None:
        super().__init__(f"There is no request for approval {request_id[:100]!r}.")
        self.request_id = request_id


class ApprovalConflictError(PatchbayError, ValueError):
    """A request for approval that is decided or expired cannot be decided."""

    code = "approval_conflict"
    kind = "invalid_request_error"
    status = 409


class ApprovalForbiddenError(PatchbayError, PermissionError):
    """The policy lets others decide this request for approval."""

    code = "approval_forbidden"
    kind = "invalid_request_error"
    status = 403


class ToolError(PatchbayError):
    """One call failed. It becomes a result for the model and never ends a run."""

    code = "tool_error"

    def __init__(self, message: str, *, tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_name = tool_name


class UnknownToolError(ToolError, LookupError):
    """The model called a tool that does not exist. ``nearest`` are names it may have meant, ``available`` all of them."""

    code = "unknown_tool"

    def __init__(self, tool_name: str, *, nearest: tuple[str, ...] = (), available: tuple[str, ...] = ()) -> None:
        super().__init__(f"Unknown tool {tool_name!r}.", tool_name=tool_name)
        self.nearest = nearest
        self.available = available

    @property
    def for_model(self) -> str:
        """Name what exists, so that the next call can be right."""
        if not self.available:
            return f"Error: there is no tool {self.tool_name!r}, and no tool is available. Answer without calling tools."
        hint = f"Did you mean {', '.join(map(repr, self.nearest))}? " if self.nearest else ""
        return (
            f"Error: there is no tool {self.tool_name!r}. {hint}Available tools: {', '.join(self.available)}. "
            "Call one of them by its exact name, or answer without a tool."
        )


class ToolArgumentsError(ToolError, ValueError):
    """A call's arguments do not fit. ``details`` are lines "path message"; ``raw_arguments`` is what the model wrote."""

    code = "invalid_arguments"

    def __init__(self, tool_name: str, *, raw_arguments: str, details: tuple[str, ...]) -> None:
        super().__init__(f"Invalid arguments for {tool_name!r}: {'; '.join(details)}", tool_name=tool_name)
        self.raw_arguments = raw_arguments
        self.details = details

    @property
    def for_model(self) -> str:
        """List what is wrong and ask for the call again."""
        return (
            f"Error: invalid arguments for {self.tool_name!r}: {'; '.join(self.details)}. The tool did not run. "
            "Fix the arguments and call the tool again."
        )


class IncompleteCallError(ToolError, ValueError):
    """A call was cut off in the middle. It is never run."""

    code = "incomplete_call"

    def __init__(self, tool_name: str) -> None:
        super().__init__(f"The call of {tool_name!r} was cut off before it was complete", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Ask for the call again, shorter."""
        return (
            f"Error: {self}, and the tool did not run. Write the whole call again, shorter: "
            "split long arguments over several calls."
        )


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool did not finish within its limit (seconds)."""

    code = "tool_timeout"

    def __init__(self, tool_name: str, *, limit: float) -> None:
        super().__init__(f"Tool {tool_name!r} timed out after {limit}s", tool_name=tool_name)
        self.limit = limit

    @property
    def for_model(self) -> str:
        """Report the timeout, and what may be tried."""
        return f"Error: {self}. Try once more with a smaller task, try something else, or tell the user."


class RunTimeoutError(ToolTimeoutError):
    """The time limit of the whole run (``limit``, in seconds) ended before the call had finished."""

    code = "run_timeout"

    @property
    def for_model(self) -> str:
        """Report the timeout, for the history of later turns."""
        return f"Error: {self}, which was the limit of the whole run."


class RepeatedCallError(ToolError, RuntimeError):
    """The same call has returned the same result ``times`` times. It was not run again."""

    code = "repeated_call"

    def __init__(self, tool_name: str, *, times: int) -> None:
        super().__init__(f"The same call of {tool_name!r} gave the same result {times} times", tool_name=tool_name)
        self.times = times

    @property
    def for_model(self) -> str:
        """Say that a repetition returns nothing new."""
        return (
            f"Error: {self}, so it was not run again. Use the result that you have, call the tool with other arguments, "
            "or do something else."
        )


class CallBudgetError(ToolError, RuntimeError):
    """The run has made its maximum of calls (``limit``). The tool did not run."""

    code = "call_budget"

    def __init__(self, tool_name: str, *, limit: int) -> None:
        super().__init__(f"The run may make no more than {limit} calls", tool_name=tool_name)
        self.limit = limit

    @property
    def for_model(self) -> str:
        """Say that no more calls are possible."""
        return f"Error: {self}: the tool {self.tool_name!r} did not run. Answer with what you have."


class ToolDeniedError(ToolError, PermissionError):
    """A hook or an approver (``by``) denied a call; the tool did not run."""

    code = "tool_denied"

    def __init__(self, words: str, reason: str, *, tool_name: str, by: str) -> None:
        super().__init__(f"{words}: {reason}" if reason else words, tool_name=tool_name)
        self.reason = reason
        self.by = by

    @property
    def for_model(self) -> str:
        """The wording of the contract."""
        return str(self)


class HookFailedError(ToolError, RuntimeError):
    """The hook that owns a tool did not answer its call, or a hook that must see each result could not be called."""

    code = "hook_failed"


class ToolRetry(ToolError):  # noqa: N818  (a message of the tool to the model)
    """For tools to raise: the call can work with other arguments. The message tells the model which."""

    code = "tool_retry"

    @property
    def for_model(self) -> str:
        """The tool's message, and that it may be called again."""
        return f"Error: {_sentence(self)}Fix the arguments and call the tool again."


class ToolNotLoadedError(ToolError):
    """A call of a tool that no search has found yet. It did not run, and is offered from the next request on."""

    code = "tool_not_loaded"

    def __init__(self, tool_name: str) -> None:
        super().__init__(f"The tool {tool_name!r} was not loaded", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Say that it can be called now."""
        return f"Error: {self}. It is now: call it again, with the arguments of its schema."


class HiddenToolError(ToolError):
    """A call of a tool that is hidden because its callback, or its MCP server, is unreachable. It did not run."""

    code = "tool_hidden"

    def __init__(self, tool_name: str) -> None:
        super().__init__(f"The tool {tool_name!r} is hidden, because its callback or server does not answer", tool_name=tool_name)

    @property
    def for_model(self) -> str:
        """Say that it did not run, and when it can."""
        return f"Error: {self}. It did not run; it is back when that takes connections again."


class ToolFailed(ToolError):  # noqa: N818  (as above)
    """For tools to raise: this cannot work with any arguments. The message tells the model why."""

    code = "tool_failed"

    @property
    def for_model(self) -> str:
        """The tool's message, and that it should not be called again like this."""
        return f"Error: {_sentence(self)}Do not try the same again: do something else, or tell the user."


def _sentence(error: BaseException) -> str:
    words = str(error).strip()
    if not words:
        return ""
    return f"{words} " if words[-1] in ".!?:" else f"{words}. "
