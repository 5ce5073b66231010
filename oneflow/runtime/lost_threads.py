"""Ends of a process that has threads in C++ code which nobody can stop: daemon threads of the user, or those a fork lost."""

from __future__ import annotations

import ctypes
import signal
import sys


def skip_destructors() -> bool:
    """Makes the C library leave at once, with the status it is given: C++ destructors would wait for lost threads.

    Returns: whether this C library can.
    """
    libc = ctypes.CDLL(None)
    on_exit = getattr(libc, "on_exit", None)  # of glibc
    return on_exit is not None and on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None) == 0


def let_threads_hang() -> bool:
    """Lets the interpreter go away under threads that are in C++ code, until the process ends with its own status.

    Called by the main thread. Until 3.14 CPython ends such a thread by pthread_exit when it comes back from C++ code, as
    JAX's destructors of arrays do. That unwinds its stack, and the process is aborted where C++ code on it must not throw, or
    catches everything. The thread waits for ever instead, which is what CPython 3.14 does, too.

    Returns: whether both this platform's C and C++ libraries can.
    """
    if sys.version_info < (3, 14) and not _abort_on_this_thread_only():
        return False
    return skip_destructors()


def _abort_on_this_thread_only() -> bool:
    """A function of the C library becomes the handler: Python code cannot run there. ``putchar`` waits for the lock of standard
    output, which is this thread's from now on; on this thread it returns, and the process is aborted as it should be."""
    libc = ctypes.CDLL(None)
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        wait = ctypes.cast(libc.putchar, ctypes.c_void_p)
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    except (OSError, AttributeError, ValueError):  # other libraries
        return False
    if libc.ftrylockfile(stdout) != 0:  # some thread is writing
        return False
    set_terminate.argtypes = [ctypes.c_void_p]
    set_terminate.restype = libc.signal.restype = ctypes.c_void_p
    set_terminate(wait)
    libc.signal(int(signal.SIGABRT), wait)
    return True
