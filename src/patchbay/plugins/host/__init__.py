"""The host: runs each plugin in a process of its own, registers its tools with the server, and answers the server's calls.

What lives here: the host's side of ``patchbay.plugins.messages``. What does not: the plugin's side (``runtime``, ``child``), the
server's (``patchbay.server``), and the command line (``patchbay.cli.plugins``). It asks the server over HTTP like everybody else,
and imports nothing of it but the HTTP client.

    host ─┬─ supervisor (one per plugin) ── process ── socket ── the plugin
          │        └── calls
          ├─ reconciler ── server_api ──HTTP──> the server's /api/tools
          └─ callback  <──HTTP── the server
"""

from patchbay.plugins.host.host import PluginHost
from patchbay.plugins.host.policy import HostPolicy
from patchbay.plugins.host.spec import PluginSpec

__all__ = ["HostPolicy", "PluginHost", "PluginSpec"]
