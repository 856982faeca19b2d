"""``python -m launcher.daemon [--ready-fd N]``; with a descriptor it goes to the background at once."""

import os
import sys

if __name__ == "__main__":
    if "--ready-fd" in sys.argv and os.fork():
        os._exit(0)  # who started it need not wait for it; nothing has been imported that a fork would copy
    from launcher.daemon.main import main

    sys.exit(main())
