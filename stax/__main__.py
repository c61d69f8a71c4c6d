"""``python -m stax`` is the command ``stax``."""

from stax.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
