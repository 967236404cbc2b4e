"""The process that runs untrusted programs: one forked, confined child for each, then killed.

`rc_lib.envs.python_sandbox` starts this file as a script that imports the standard library alone.
It never runs a program itself. It forks, and the child gives up all rights before it compiles the
text, so the modules that a program may use are imported once and not for every program.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import linecache
import os
import platform
import random
import resource
import selectors
import signal
import sys
import time
import traceback
import types

# System calls of a computation that may print, by name; all others fail with EPERM.
ALLOWED = {
    "x86_64": (0xC000003E, dict(
        read=0, write=1, close=3, fstat=5, lseek=8, mmap=9, mprotect=10, munmap=11, brk=12,
        rt_sigprocmask=14, rt_sigreturn=15, writev=20, sched_yield=24, mremap=25, madvise=28,
        nanosleep=35, getpid=39, exit=60, gettimeofday=96, getrusage=98, times=100, getuid=102,
        sigaltstack=131, gettid=186, time=201, futex=202, restart_syscall=219, clock_gettime=228,
        clock_getres=229, clock_nanosleep=230, exit_group=231, getrandom=318, rseq=334,
    )),
    "aarch64": (0xC00000B7, dict(
        close=57, lseek=62, read=63, write=64, writev=66, fstat=80, exit=93, exit_group=94,
        futex=98, nanosleep=101, clock_gettime=113, clock_getres=114, clock_nanosleep=115,
        sched_yield=124, restart_syscall=128, sigaltstack=132, rt_sigprocmask=135,
        rt_sigreturn=139, times=153, getrusage=165, gettimeofday=169, getpid=172, getuid=174,
        gettid=178, brk=214, munmap=215, mremap=216, mmap=222, mprotect=226, madvise=233,
        getrandom=278, rseq=293,
    )),
}  # fmt: skip
NOBODY = 65534
# What the audit hook refuses where there is no filter: the first word of an event of CPython.
REFUSED = {"open", "os", "socket", "subprocess", "ctypes", "shutil", "fcntl", "syslog", "resource",
           "signal", "tempfile", "glob", "pty", "mmap", "_posixsubprocess"}  # fmt: skip


def system_call_filter(machine: str) -> bytes:
    """Return the seccomp filter of a machine: classic BPF, instructions of 8 bytes.

    Args:
        machine: as `platform.machine` names it, "x86_64" or "aarch64".

    >>> len(system_call_filter("x86_64")) // 8 - len(ALLOWED["x86_64"][1])
    6
    """
    load, equal, give = 0x20, 0x15, 0x06
    kill, refuse, allow = 0x80000000, 0x00050001, 0x7FFF0000  # refuse: with errno 1, EPERM
    architecture, calls = ALLOWED[machine]

    def instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return code.to_bytes(2, sys.byteorder) + bytes([yes, no]) + value.to_bytes(4, sys.byteorder)

    numbers = list(calls.values())
    lines = [instruction(load, 4), instruction(equal, architecture, 1, 0), instruction(give, kill)]
    lines.append(instruction(load, 0))
    lines += [instruction(equal, n, len(numbers) - i) for i, n in enumerate(numbers)]
    return b"".join([*lines, instruction(give, refuse), instruction(give, allow)])


def filter_system_calls() -> bool:
    """Confine this process to `ALLOWED` for good; returns whether the kernel does so."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ALLOWED:
        return False
    code = system_call_filter(machine)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    program = Program(len(code) // 8, code)
    control = ctypes.CDLL(None).prctl
    control.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    return (
        control(no_new_privileges, 1, 0, 0, 0) == 0
        and control(set_seccomp, mode_filter, ctypes.addressof(program), 0, 0) == 0
    )


def refuse_events() -> None:
    """Refuse dangerous events of the interpreter; native code does not raise any."""

    def hook(event: str, arguments: tuple) -> None:
        if event.split(".")[0] in REFUSED:
            raise PermissionError(1, f"not allowed here: {event}")

    sys.addaudithook(hook)


def confine(settings: dict) -> list[str]:
    """Give up this process's rights; returns the names of the guards that now hold."""
    guards = []
    if os.getuid() == 0:
        with contextlib.suppress(OSError):  # a user namespace or a container may have no nobody
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            guards.append("another user")
    cpu_s = settings["cpu_s"]
    limits = {
        "AS": (settings["memory_bytes"],) * 2,
        "CPU": (cpu_s, cpu_s + 1),  # SIGXCPU, then SIGKILL
        "CORE": (0, 0),
        "FSIZE": (0, 0),
        "NPROC": (0, 0),
        "NOFILE": (0, 0),
    }
    for name, limit in limits.items():
        with contextlib.suppress(OSError, ValueError, AttributeError):  # macOS lacks some
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), limit)
            if name != "NPROC" or os.getuid() != 0:  # the kernel does not count root's processes
                guards.append(f"RLIMIT_{name}")
    if settings["seccomp"] and filter_system_calls():
        return [*guards, "seccomp"]
    refuse_events()
    return [*guards, "audit hook"]


def child(program: str, settings: dict, output: int, errors: int) -> None:
    """Become the process of one program; never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.closerange(3, 1024)
        os.environ.clear()
        sys.path.clear()
        sys.path_importer_cache.clear()
        linecache.cache.clear()
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        random.seed(0)
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        signal.setitimer(signal.ITIMER_REAL, settings["wall_s"] + 1)  # should the server be gone
        module.GUARDS = confine(settings)
        exec(compile(program, "<program>", "exec", dont_inherit=True), module.__dict__)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if code and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def run(program: str, settings: dict) -> dict[str, str]:
    """Run one program in a child and kill what is left of it.

    Returns:
        ``output``, what it printed; ``error``, "" or one line that says how it failed.
    """
    output, output_end = os.pipe()
    errors, errors_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(program, settings, output_end, errors_end)
    os.close(output_end)
    os.close(errors_end)
    texts = {output: b"", errors: b""}
    try:
        stopped = _read(texts, settings)
    finally:
        # Closed pipes mean that it has ended, or cannot say any more.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        os.close(output)
        os.close(errors)
    limit = settings["output_bytes"]
    shown, said = (t[:limit].decode(errors="replace") for t in (texts[output], texts[errors]))
    return {"output": shown, "error": stopped or _failure(status, usage, said, settings)}


def _read(texts: dict[int, bytes], settings: dict) -> str:
    """Read the pipes to their ends; returns why that was given up, if it was."""
    deadline = time.monotonic() + settings["wall_s"]
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return f"stopped: more than {settings['wall_s']:g} s"
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                texts[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
                if len(texts[key.fd]) > settings["output_bytes"]:
                    return f"stopped: more than {settings['output_bytes']} bytes of output"
    return ""


def _failure(status: int, usage: resource.struct_rusage, said: str, settings: dict) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    cpu_s = usage.ru_utime + usage.ru_stime
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s >= settings["cpu_s"]):
        return f"stopped: more than {settings['cpu_s']} s of CPU time"
    if code < 0:
        return f"ended by signal {-code} ({signal.strsignal(-code)})"
    return said.strip().split("\n")[-1].strip() or f"exit code {code}"


def serve() -> None:
    """Answer requests by the line until standard input ends."""
    settings = json.loads(sys.stdin.readline())
    for name in settings["modules"]:
        importlib.import_module(name)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), settings)), flush=True)


if __name__ == "__main__":
    serve()
