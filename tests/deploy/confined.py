"""``python confined.py CALLS FAMILIES COMMAND…``: run a command under a unit's system call filter.

Without systemd: ``SystemCallFilter``, ``RestrictAddressFamilies``, ``NoNewPrivileges`` and
``SystemCallErrorNumber=EPERM``, by the library by which systemd does it. It is started with nothing but
Python's standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL = 4


class _Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def confine(calls, families):
    """From now on this process may do these calls, and make sockets of these families.

    All else is refused.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    everything = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.EPERM))

    def allow(call, *arguments):
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:  # of another architecture
            return
        told = (_Argument * len(arguments))(*arguments)
        done = library.seccomp_rule_add_array(everything, _ALLOW, number, len(arguments), told)
        assert done == 0, (call, done)

    for call in calls:
        if call != "socket":
            allow(call)
    for family in families:
        allow("socket", _Argument(0, _EQUAL, getattr(socket, family)))
    loaded = library.seccomp_load(everything)
    assert loaded == 0, loaded


if __name__ == "__main__":
    confine(sys.argv[1].split(","), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - a list
