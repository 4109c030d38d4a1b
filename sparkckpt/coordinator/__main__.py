"""`python -m sparkckpt.coordinator`: launched by the plugin on Spark's driver, never by hand.

Standard input and output are the pipe; whatever code prints goes to standard error, which the
driver puts into Spark's log.
"""

import logging
import os
import signal
import sys

from sparkckpt.coordinator.process import CoordinatorProcess

TERMINATION_SECONDS = 10.0


def main() -> None:
    """Ends the interpreter itself: threads that wait for storage must not keep it."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s", force=True
    )
    from_driver, to_driver = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    process = CoordinatorProcess(from_driver, to_driver)
    # Ctrl-C reaches the whole group; the driver decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.finish(TERMINATION_SECONDS))
    code = 1
    try:
        process.run()
        code = 0
    except BrokenPipeError:
        code = 0
    except Exception:
        logging.exception("The checkpoint coordinator has failed")
    finally:
        logging.shutdown()
        os._exit(code)


if __name__ == "__main__":
    main()
