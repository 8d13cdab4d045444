"""Run llama.cpp's server, which the package xllamacpp contains, until this process is killed.

    python benchmarks/peer_server.py MODEL PORT THREADS CONTEXT SLOTS

CONTEXT is the context of one answer, in tokens.
"""

import signal
import sys

import xllamacpp


def main():
    """Serve."""
    model, port, threads, context, slots = sys.argv[1], *map(int, sys.argv[2:])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_ctx = context * slots
    params.n_parallel = slots
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
