"""The threads that native calls share."""

from __future__ import annotations

import ctypes.util
import glob
import os
import subprocess
import sys
import sysconfig
import textwrap
from typing import Any

import pytest

# A product on two threads. Address space for less than a thread's stack is left, so that none can be started.
REFUSED = textwrap.dedent("""
    import resource
    import numpy as np
    import oneflow_native

    library = oneflow_native.load(2)
    library.min_parallel_work = 0
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 30), np.float32), rng.standard_normal((30, 20), np.float32)
    c = np.zeros((40, 20), np.float32)

    def product():
        c[:] = 0
        library.execute("matmul", [0, 1, 40, 20, 30, 0, 0], a.ctypes.data, b.ctypes.data, c.ctypes.data)

    library.threads = 1
    product()  # what oneDNN allocates when it is first used
    expected = a @ b
    library.threads = 2
    (used,) = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize")]
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20),) * 2)
    product()
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    print(library.threads)
""")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit of Linux's")
def test_where_threads_cannot_be_started_calls_have_fewer(native_part: Any) -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr


FORKED = textwrap.dedent("""
    import os
    import numpy as np
    import oneflow_native

    library = oneflow_native.load(2)
    library.min_parallel_work = 0
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 30), np.float32), rng.standard_normal((30, 20), np.float32)
    c = np.zeros((40, 20), np.float32)

    def check():
        c[:] = 0
        library.execute("matmul", [0, 1, 40, 20, 30, 0, 0], a.ctypes.data, b.ctypes.data, c.ctypes.data)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)

    check()
    child = os.fork()
    if child == 0:
        check()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    check()
    print(os.waitstatus_to_exitcode(status))
""")


def test_a_forked_child_starts_threads_of_its_own(native_part: Any) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "7", done.stderr


# Each of four threads computes a product on two threads, and lives until all have. libgomp would keep a team for each of them.
WITH_LIBGOMP = textwrap.dedent("""
    import ctypes
    import os
    import sys
    import threading
    ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # as importing PyTorch does
    import numpy as np
    import oneflow_native

    library = oneflow_native.load(2)
    library.min_parallel_work = 0
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((512, 512), np.float32), rng.standard_normal((512, 512), np.float32)
    computed, counted = threading.Barrier(5), threading.Event()

    def product():
        c = np.zeros((512, 512), np.float32)
        library.execute("matmul", [0, 1, 512, 512, 512, 0, 0], a.ctypes.data, b.ctypes.data, c.ctypes.data)
        np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
        computed.wait()
        counted.wait()

    before = len(os.listdir("/proc/self/task"))
    for _ in range(4):
        threading.Thread(target=product).start()
    computed.wait()
    print(len(os.listdir("/proc/self/task")) - before - 4)
    counted.set()
""")


def test_a_libgomp_that_is_loaded_already_is_not_used(native_part: Any) -> None:
    of_torch = glob.glob(f"{sysconfig.get_path('purelib')}/torch/lib/libgomp*")
    libgomp = of_torch[0] if of_torch else ctypes.util.find_library("gomp")
    if libgomp is None:
        pytest.skip("neither the system nor PyTorch has a libgomp")
    done = subprocess.run([sys.executable, "-c", WITH_LIBGOMP, libgomp], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr  # the one worker that they share


# Another process keeps one of two cores busy. Whatever thread computes which part, the parts are the same.
BESIDE_A_BUSY_CORE = textwrap.dedent("""
    import os
    import subprocess
    import sys
    import threading
    import time
    import numpy as np
    import oneflow_native

    BUSY = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); me = os.getppid()\\nwhile os.getppid() == me: pass"
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    library = oneflow_native.load(2)
    library.min_parallel_work = 0
    rng = np.random.default_rng(0)
    sizes = [(512, 512, 512), (64, 64, 64), (300, 200, 1000)]
    operands = [(rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)) for m, n, k in sizes]

    def product(which):
        (m, n, k), (a, b) = sizes[which], operands[which]
        c = np.zeros((m, n), np.float32)
        library.execute("matmul", [0, 1, m, n, k, 0, 0], a.ctypes.data, b.ctypes.data, c.ctypes.data)
        return c

    def bound_to_one_core():
        os.sched_setaffinity(0, cores[:1])
        for calls in range(300):
            product(calls % 3)

    first = [product(i) for i in range(3)]
    for c, (a, b) in zip(first, operands):
        np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    other = subprocess.Popen([sys.executable, "-c", BUSY, str(cores[-1])])
    try:
        begin, calls = time.monotonic(), 0
        while calls < 300 or library.moves < 3 and time.monotonic() - begin < 40:
            np.testing.assert_array_equal(product(calls % 3), first[calls % 3])
            calls += 1
        for _ in range(60):
            library.threads = int(rng.integers(1, 6))
            which = int(rng.integers(3))
            np.testing.assert_allclose(product(which), first[which], rtol=1e-3, atol=1e-3)
        library.threads, moves = 2, library.moves
        bound = threading.Thread(target=bound_to_one_core)
        bound.start()
        bound.join()
        moves_to_bound = library.moves - moves  # the thread could not leave its core to the other one again
    finally:
        other.kill()
        other.wait()
    print(library.moves >= 3, os.sched_getaffinity(0) == set(cores), moves_to_bound == 0, library.taken_over > 0)
""")


def test_a_thread_whose_core_is_busy_goes_on_beside_the_caller_or_leaves_its_part_to_it(native_part: Any) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = subprocess.run([sys.executable, "-c", BESIDE_A_BUSY_CORE], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True"] * 4, done.stdout + done.stderr
