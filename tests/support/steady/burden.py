"""A process that keeps a core or a disk busy on demand: `burden.py cpu`, `burden.py disk DIRECTORY`.

It reads lines from its input: `on`, `off`. When its input ends it ends too, so that it does not outlive the
tool that started it, however that ended. The file that it writes has no name, and is gone with it.
"""

import os
import sys
import tempfile
import threading

FILE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 8 * 1024 * 1024


def use_cpu(on: threading.Event) -> None:
    while on.is_set():
        sum(range(100_000))


def write_to_disk(on: threading.Event, directory: str) -> None:
    chunk = os.urandom(CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=directory) as file:
        while on.is_set():
            if file.tell() >= FILE_BYTES:
                file.seek(0)
            file.write(chunk)
            file.flush()
            os.fsync(file.fileno())


def main() -> None:
    on = threading.Event()

    def work() -> None:
        while on.wait():
            if sys.argv[1] == "cpu":
                use_cpu(on)
            else:
                write_to_disk(on, sys.argv[2])

    threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        if line == "on\n":
            on.set()
        else:
            on.clear()
    os._exit(0)  # in the midst of a write


if __name__ == "__main__":
    main()
