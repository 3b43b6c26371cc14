"""OpenBLAS's side of bench/kernels: reads a row's name per line, answers with the median seconds of one product. An empty line frees what rows
hold, and a number of threads behind the word threads is taken from then on.

Usage: openblas.py THREADS SECONDS_PER_TURN MODE, started by the benchmark. OpenBLAS is PyPI's scipy-openblas32; OPENBLAS_CORETYPE names its kernels.
"""

import ctypes
import sys
import time

import numpy
import scipy_openblas32

TURN = float(sys.argv[2])
ROW_MAJOR, NO_TRANS = 101, 111
lib = ctypes.CDLL(f"{scipy_openblas32.get_lib_dir()}/lib{scipy_openblas32.get_library()}.so")


def open_row(name):
    n = int(name.removeprefix("square_"))
    a, b, c = ((numpy.arange(n * n) * 7919 % 2001 - 1000).astype(numpy.float32).reshape(n, n) / 500 for _ in range(3))
    pointer = ctypes.POINTER(ctypes.c_float)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    pa, pb, pc = (x.ctypes.data_as(pointer) for x in (a, b, c))

    def run(a=a, b=b, c=c):  # which keeps them alive
        lib.scipy_cblas_sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, n, n, n, one, pa, n, pb, n, zero, pc, n)

    return run


def timed(run):
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < TURN:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    times.sort()
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2


def main():
    lib.scipy_openblas_get_config.restype = lib.scipy_openblas_get_corename.restype = ctypes.c_char_p
    print(lib.scipy_openblas_get_config().decode(), "core", lib.scipy_openblas_get_corename().decode(), flush=True)
    runs, answer = {}, 0
    for line in sys.stdin:
        name, *threads = line.split() or [""]
        if not name:
            runs.clear()
        elif name == "threads":
            lib.scipy_openblas_set_num_threads(int(threads[0]))
        else:
            runs[name] = runs.get(name) or open_row(name)
            answer = timed(runs[name])
        print(answer, flush=True)


if __name__ == "__main__":
    main()
