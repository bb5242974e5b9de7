"""``python -m tokgate``: the command line."""

from tokgate.cli import main

if __name__ == "__main__":
    main()
