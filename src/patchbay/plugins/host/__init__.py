"""The host: runs each plugin in a worker process, registers its tools with the server, and answers the server's calls.

    host ─┬─ supervisor (one per plugin) ── instance ── process ── socket ── the worker
          │        └── calls, tools
          ├─ registrar ── server_api ──HTTP──> the server's /api/tools
          └─ callback  <──HTTP── the server

It imports no web framework, and shares with the server the HTTP client, the admission rules and the progress lines.
"""

from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.manifest import PluginSpec

__all__ = ["HostPolicy", "PluginHost", "PluginSpec"]
