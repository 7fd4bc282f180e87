"""Run a program that cannot open netlink sockets: `python without_netlink.py PROGRAM ARGUMENT…`.

Chromium follows the machine's interfaces and addresses by netlink, and cancels requests with
ERR_NETWORK_CHANGED when a container of another test starts or ends. Without netlink it takes the
network as connected and unchanging. A seccomp filter needs no privileges and no library.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_SYSCALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its AUDIT_ARCH and the number of socket(2)."""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data


class _Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse_netlink() -> None:
    """Make each later attempt of this process and its children to open a netlink socket fail."""
    arch, number = _SYSCALLS[platform.machine()]
    code = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _ARCH_AT),
            (_JUMP_IF_EQUAL, 0, 5, arch),
            (_LOAD, 0, 0, _NUMBER_AT),
            (_JUMP_IF_EQUAL, 0, 3, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
            (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse_netlink()
    os.execvp(sys.argv[1], sys.argv[1:])
