"""Records exchanges between PyTorch's TCPStore client and both of its servers, byte by byte, into exchanges.txt.

    VENV/bin/python comm/internal/tcpstore/testdata/record.py

Each line is an operation's name, `>` or `<` (what the client sends, what the server sends), and the bytes in
hexadecimal. Both servers must say the same.
"""
import pathlib
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
from torch.distributed import TCPStore

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)

def proxy(port, lines):
    """Passes connections on to port, and appends what crosses to lines."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def pump(a, b, way):
        while data := a.recv(1 << 16):
            lines.append((way, data))
            b.sendall(data)

    def accept():
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=pump, args=(client, server, ">"), daemon=True).start()
        threading.Thread(target=pump, args=(server, client, "<"), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def record(libuv):
    server = TCPStore("127.0.0.1", 0, is_master=True, use_libuv=libuv)
    lines, out = [], []
    client = None

    def step(name, act):
        lines.clear()
        act()
        time.sleep(0.2)  # a query without an answer
        out.extend(f"{name} {way} {data.hex()}" for way, data in lines)

    def connect():
        nonlocal client
        port = proxy(server.port, lines)
        client = TCPStore("127.0.0.1", port, is_master=False, use_libuv=libuv, timeout=timedelta(seconds=5))

    # PyTorch's client puts a slash before each key.
    step("connect", connect)
    # VALIDATE is the first five bytes; the PING behind it holds the client's process id and is of no interest.
    out[:] = [out[0][: len("connect > ") + 10]]
    step("check", lambda: client.check(["lockstep"]))
    step("compare_set_new", lambda: client.compare_set("a", "", "first"))
    step("compare_set_old", lambda: client.compare_set("a", "", "second"))
    step("set", lambda: client.set("b", "value"))
    step("get", lambda: client.get("b"))
    step("delete", lambda: client.delete_key("b"))
    step("delete_missing", lambda: client.delete_key("b"))
    return out


exchanges = record(True)
assert exchanges == record(False), "the two servers differ"
(OUT / "exchanges.txt").write_text(f"# torch {torch.__version__}\n" + "\n".join(exchanges) + "\n")
