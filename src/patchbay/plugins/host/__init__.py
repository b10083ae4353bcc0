"""The host: runs each plugin in a process of its own, registers its tools with the server, and answers the server's calls.

What lives here: the host's side of ``patchbay.plugins.protocol``. What does not: the plugin's side (``runtime``, ``child``), the
server's (``patchbay.server``), and the command line (``patchbay.cli.plugins``). It asks the server over HTTP like everybody else,
and shares with it the HTTP client, who is let in (``server.tools.admission``) and how progress is written
(``server.tools.progress``); no web framework is imported.

    host ─┬─ supervisor (one per plugin) ── life ── process ── socket ── the plugin
          │        └── calls, plugin_tools
          ├─ reconciler ── server_api ──HTTP──> the server's /api/tools
          └─ callback  <──HTTP── the server
"""

from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.manifest import PluginSpec

__all__ = ["HostPolicy", "PluginHost", "PluginSpec"]
