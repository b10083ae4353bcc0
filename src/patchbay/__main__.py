"""``python -m patchbay``: the command line."""

from patchbay.cli import main

if __name__ == "__main__":
    main()
