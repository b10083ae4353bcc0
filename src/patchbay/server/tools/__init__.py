"""The door that tools of other processes come in by: ``/api/tools``, and the way back to where they answer.

What lives here: who may come in (``guard``), what is registered and told (``desk``, ``api``), how a tool's calls are carried to
its callback (``dispatch``, ``callback_url``), what becomes of callbacks that are gone (``lease``), and when registrations are
written down (``keeper``). What does not: the rules of the registry (``patchbay.tools.registry``), and how a server is run
(``patchbay.server.serve``).
"""

from patchbay.server.tools.app import ToolsApp, create_tools_app
from patchbay.server.tools.dispatch import CallbackError, CallbackTool
from patchbay.server.tools.settings import ToolsSettings

__all__ = ["CallbackError", "CallbackTool", "ToolsApp", "ToolsSettings", "create_tools_app"]
