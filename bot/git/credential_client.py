"""git's credential helper: passes git's request to the bot's socket and the answer back to git.

It is run by path and isolated (`python -I -S credential_client.py SOCKET OPERATION`), so that it imports no file of
the working directory, and at every contact with GitHub, so that it imports little.
https://git-scm.com/docs/gitcredentials#_custom_helpers
"""

import os
import socket
import sys

TIMEOUT_SECONDS = 60


def main() -> None:
    folder, _, name = sys.argv[1].rpartition("/")
    operation = sys.argv[2]
    os.chdir(folder)  # a socket address has at most 107 bytes, less than many paths
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(name)
        connection.sendall(operation.encode() + b"\n" + sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        while answer := connection.recv(4096):
            sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
