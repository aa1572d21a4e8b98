"""Deny system calls to a sandboxed program by a small seccomp filter.

The sandbox's namespaces and limits work without the filter. The filter denies calls that these
allow: memory without a limit (memfd_create, shmget), the user's keys, sockets outside network
namespaces (AF_VSOCK reaches the host of a virtual machine), and new user namespaces, which would
open parts of the kernel that the program does not need.
"""

from __future__ import annotations

import errno
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* by machine; Linux, linux/audit.h."""

DENIED_CALLS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "fsopen": (430, 430),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "setns": (308, 268),
    "shmget": (29, 194),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""Numbers of the calls that fail with EPERM, on x86_64 and on aarch64."""

CLONE = (56, 220)
CLONE3 = 435
SOCKET = (41, 198)

NAMESPACES = 0x7E020000
"""All CLONE_NEW* flags of clone."""

FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6, whose addresses are within the sandbox's own namespaces."""

X32 = 0x40000000
"""Bit of the call numbers of x86_64's x32 ABI."""

_LOAD, _EQUAL, _SET, _ABOVE, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_CALL_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENT_OFFSET = 0, 4, 16


def program(machine: str) -> bytes | None:
    """Return the seccomp filter (`sock_filter` bytes) for an os.uname machine; None if unknown."""
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _CALL_OFFSET),
        (_ABOVE, 0, 1, X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for numbers in DENIED_CALLS.values():
        lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    # The C library falls back to clone, whose flags can be read here.
    lines += [(_EQUAL, 0, 1, CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    lines += [
        (_EQUAL, 0, 4, CLONE[column]),
        (_LOAD, 0, 0, _ARGUMENT_OFFSET),
        (_SET, 0, 1, NAMESPACES),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    lines += [(_EQUAL, 0, 2 + len(FAMILIES), SOCKET[column]), (_LOAD, 0, 0, _ARGUMENT_OFFSET)]
    for position, family in enumerate(FAMILIES):
        lines.append((_EQUAL, len(FAMILIES) - position, 0, family))
    lines += [(_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
