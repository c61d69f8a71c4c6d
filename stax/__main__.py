"""``python -m stax`` is the command ``stax``. An interrupt while it is still importing ends it without a trace."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # main takes over

from stax.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
