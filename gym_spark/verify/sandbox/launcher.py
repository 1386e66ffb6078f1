"""Runs inside a sandbox, ahead of the program: takes rights away from itself, then becomes the program.

Started as ``python -I -S -B -c SOURCE``, where SOURCE is this file's text and a call of :func:`main`: it may stand in a
zip that Spark has shipped, and nothing of gym-spark is to be readable inside. So it uses the standard library alone (no
package for seccomp or Landlock can be imported there), and of that little, since each program waits for it. Not
`preexec_fn`: that is unsafe in a process with threads.

On the report pipe goes the line ``ready`` just before the program starts, and ``ended STATUS CPU_S`` after its end
where this process stays beside it. Any other line says what failed: the machine's fault, never the program's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

# Annotations alone, which are not evaluated: importing typing would cost each program milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Rule = tuple[int, int, int, int]
    Numbers = Mapping[str, tuple[int, int]]

#: System calls by number, (x86-64, aarch64); -1 where there is none. Never made by an honest program: end it.
FATAL = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "reboot": (169, 142),
    "open_by_handle_at": (304, 265),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
}
#: Refused with EPERM: a library may try them and go on.
REFUSED = {
    "socket": (41, 198),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "fanotify_init": (300, 262),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
#: Where the machine's files and processes are in sight (Landlock), also what it leaves open to the same user: the
#: owner, mode and times of any file, other processes' priorities, and System V's and POSIX's queues and memory.
REFUSED_IN_SIGHT = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "tkill": (200, 130),
}
#: Allowed on oneself only, where a program has no other process; its number is the first argument.
ON_ITSELF = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
FORKS = {"fork": (57, -1), "vfork": (58, -1)}
CLONE, CLONE3 = (56, 220), (435, 435)
CLONE_THREAD, CLONE_NAMESPACES = 0x00010000, 0x7E020000

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
X32 = 0x40000000  # x86-64's second table of system calls: the numbers above do not hold in it

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EAGAIN, ENOSYS = 1, 11, 38
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
SYS_CAPSET = (126, 91)
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """Return a call's result, or raise what it failed with."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def machine() -> tuple[int, int]:
    """Return the column of the tables above and the architecture's name in the kernel."""
    name = os.uname().machine
    if name not in ARCHITECTURES or sys.maxsize < 1 << 32:
        raise OSError("no table of system calls for " + name)
    return ARCHITECTURES[name]


def filter_program(may_fork: bool, in_sight: bool) -> list[Rule]:
    """Return the seccomp filter, as (code, jump if true, jump if false, operand) in order.

    What is not named is allowed. Each rule leaves the number in the accumulator or returns.
    """
    column, architecture = machine()
    rules = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if column == 0:
        rules += [(ABOVE, 0, 1, X32), (RETURN, 0, 0, KILL)]

    def deny(table: Numbers, action: int) -> None:
        for numbers in table.values():
            if numbers[column] >= 0:
                rules.extend([(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, action)])

    deny(FATAL, KILL)
    deny(REFUSED, ERRNO | EPERM)
    # Its flags lie in memory, which a filter cannot read; libc then makes do with clone.
    deny({"clone3": CLONE3}, ERRNO | ENOSYS)
    if in_sight:
        deny(REFUSED_IN_SIGHT, ERRNO | EPERM)
    if not may_fork:
        for numbers in ON_ITSELF.values():
            rules += [(EQUAL, 0, 5, numbers[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 2, 0, os.getpid())]
            # 0 means itself, or its group, which is a new one.
            rules += [(EQUAL, 1, 0, 0), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
    flags = [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, FIRST_ARGUMENT)]
    if may_fork:
        rules += [*flags, (ANY_BIT, 0, 1, CLONE_NAMESPACES), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
    else:
        deny(FORKS, ERRNO | EAGAIN)
        rules += [*flags, (ANY_BIT, 1, 0, CLONE_THREAD), (RETURN, 0, 0, ERRNO | EAGAIN), (RETURN, 0, 0, ALLOW)]
    return [*rules, (RETURN, 0, 0, ALLOW)]


def apply_filter(may_fork: bool, in_sight: bool) -> None:
    """Have the kernel filter this process's system calls from now on."""
    program = filter_program(may_fork, in_sight)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in program))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code)))
    checked(libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has; -1 without."""
    return int(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def apply_landlock(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Take all access to files away, but for reading below `readable` and all of it below `writable`."""
    version = landlock_version()
    if version < 3:
        raise OSError("Landlock is %s; version 3 (Linux 6.2) is needed" % ("off" if version < 0 else version))
    files = (1 << 15) - 1 | (1 << 15 if version >= 5 else 0)
    # Connecting and binding over TCP; abstract sockets and signals across the border.
    parts = (files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    attributes = struct.pack("<QQQ", *parts)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = checked(
        libc.syscall(SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock"
    )
    execute, write, read, read_folder, truncate = 1, 2, 4, 8, 1 << 14
    special = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # making devices, sockets and FIFOs
    for path, access in (
        *((path, execute | read | read_folder) for path in readable),
        *((path, files & ~(execute | special)) for path in writable),
    ):
        try:
            place = os.open(path, os.O_PATH)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            access &= execute | write | read | truncate
        rule = struct.pack("<Qi", access, place)
        checked(libc.syscall(SYS_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "landlock rule for " + path)
        os.close(place)
    checked(libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def drop_privileges(uid: int | None) -> None:
    """Become another user, if one is named, and lose every capability."""
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # where it may; no_new_privs holds all the same
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    checked(libc.syscall(SYS_CAPSET[machine()[0]], header, none), "capset")


def limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a resource limit, or a lower one that is there already."""
    there = resource.getrlimit(kind)[1]
    hard = hard or soft
    if there != resource.RLIM_INFINITY:
        soft, hard = min(soft, there), min(hard, there)
    resource.setrlimit(kind, (soft, hard))


def confine(config: Mapping[str, Any]) -> None:
    """Take everything away that the configuration says, in the one order in which each step still may."""
    limit(resource.RLIMIT_CPU, config["cpu_s"], config["cpu_s"] + 1)
    limit(resource.RLIMIT_FSIZE, config["file_bytes"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CORE, 0)
    if config["tasks"] is not None:
        limit(resource.RLIMIT_NPROC, config["tasks"])
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    drop_privileges(config["uid"])
    if config["parent"] is not None:
        # After the change of user, which resets it. A parent that died before leaves another in its place.
        checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")
        if os.getppid() != config["parent"]:
            raise OSError("the parent is gone")
    if config["landlock"] is not None:
        apply_landlock(config["landlock"]["readable"], config["landlock"]["writable"])
    limit(resource.RLIMIT_AS, config["memory_bytes"])
    apply_filter(config["may_fork"], config["landlock"] is not None)


def supervise(report: int) -> None:
    """Fork; return in the child, and in the parent wait for its end, report it, and end.

    For the first process of a PID namespace: nothing in the namespace can end it, and all of it ends with it.
    """
    # Its memory and files are closed to a program of the same user; that becomes open to itself again by its start.
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    child = os.fork()
    if not child:
        return
    ended = 0
    while ended != child:
        ended, status, used = os.wait4(-1, 0)
    os.write(report, b"ended %d %f\n" % (status, used.ru_utime + used.ru_stime))
    os._exit(0)


def main(config: Mapping[str, Any], report: int) -> None:
    """Confine this process, or a child of it, and turn that into the program.

    Args:
        config: The fields of `Confinement` (process.py).
        report: File descriptor of the report pipe.
    """
    os.set_inheritable(report, False)
    for first, last in ((3, report), (report + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20))):
        os.closerange(first, last)
    try:
        if config["supervised"]:
            supervise(report)
        confine(config)
        os.write(report, b"ready\n")
        os.execve(config["argv"][0], config["argv"], config["environment"])
    except Exception as error:  # noqa: BLE001  whatever it is, it is told, and the program does not start
        os.write(report, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
