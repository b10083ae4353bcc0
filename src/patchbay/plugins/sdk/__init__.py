"""What a plugin is written with: the class, its decorators, its configuration.

What lives here: everything that a plugin's author touches; ``patchbay.plugins`` has the names. What does not: the process that
runs a plugin (``patchbay.plugins.child``), and the host.
"""
