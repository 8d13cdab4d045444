"""No socket is created before the first request, and offline none at all."""

import subprocess
import sys

BOMB = """
import socket
class Bomb(socket.socket):
    def __init__(self, *args, **kwargs):
        raise SystemExit("a socket was created")
socket.socket = Bomb
"""
# urllib3 tries IPv6 with a socket when it is imported; bitnet keeps it from that.
IMPORTS = """
import bitnet.hub.diagnose, bitnet.hub.resolve, bitnet.hub.provide
import urllib3.util.connection
assert urllib3.util.connection.HAS_IPV6 is socket.has_ipv6
"""


def test_importing_everything_that_may_connect_creates_no_socket():
    done = subprocess.run([sys.executable, "-c", BOMB + IMPORTS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_offline_command_creates_no_socket_from_its_very_start(tmp_path):
    program = BOMB + "from bitnet.commands.program import main; main()"
    command = [sys.executable, "-c", program, "tokenizer", "--offline", "--cache-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 23  # offline
    assert done.stderr.startswith("Error: offline: ")
