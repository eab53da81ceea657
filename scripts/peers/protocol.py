"""What every peer written in Python shares: its share of the machine, the line protocol, and how calls are sampled.

Import this before the library that is timed: importing it fixes the number of threads, which such libraries read
once, when they are loaded.

A peer calls `serve(name, version, build)`, where `build(workload)` gives `(call, params)`: a function without
arguments that does the whole work and has its result when it returns, and the number of trainable numbers. `build`
raises `Unsupported` for what the library doesn't do.
"""

import ctypes
import gc
import math
import os
import sys
import time

SAMPLE_NS = 200_000
MOST_SAMPLES = 200
WARM_UP_CALLS = 3
WARM_UP_NS = 300_000_000

THREADS = int(os.environ.get("BENCH_THREADS", "1"))
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = str(THREADS)


class Unsupported(Exception):
    """The library doesn't do this workload; the message says why."""


def keep_to_cores():
    """Keeps the process, and every thread it starts later, to THREADS cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-THREADS:])


def keep_memory():
    """Keeps freed memory in the process, instead of having the kernel clear its pages for every large array anew.

    PyTorch's tuning guide gets the same from jemalloc or TCMalloc.
    """
    trim_threshold, mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(mmap_max, 0)


def private_stdout():
    """The real stdout, for answers only: whatever else is printed on descriptor 1 from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def in_short(error):
    """An error as one line that fits in an answer."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:200]


def timed(call, calls):
    """Nanoseconds for so many calls in a row."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return time.perf_counter_ns() - start


def warm_up(call):
    """Calls until nothing is left to compile, allocate or cache; the fastest call seen, in nanoseconds."""
    fastest, spent, calls = math.inf, 0, 0
    while calls < WARM_UP_CALLS or (spent < WARM_UP_NS and calls < 1000):
        one = timed(call, 1)
        fastest, spent, calls = min(fastest, one), spent + one, calls + 1
    return fastest


def calls_a_sample(call):
    """How many calls make up a sample: one, or as many as take about 200 µs."""
    fastest = warm_up(call)
    if fastest >= SAMPLE_NS:
        return 1
    calls = max(1, round(SAMPLE_NS / fastest))
    mean = min(timed(call, calls) for _ in range(5)) / calls
    return max(1, math.ceil(SAMPLE_NS / mean))


def spread(samples):
    """At most MOST_SAMPLES of the samples, taken evenly from the first to the last."""
    if len(samples) <= MOST_SAMPLES:
        return samples
    step = (len(samples) - 1) / (MOST_SAMPLES - 1)
    return [samples[round(i * step)] for i in range(MOST_SAMPLES)]


def sample(call, calls, seconds):
    """Nanoseconds a call, sample after sample, for about so many seconds; without the garbage collector's pauses."""
    samples = []
    gc.collect()
    gc.disable()
    end = time.perf_counter_ns() + int(seconds * 1e9)
    while len(samples) * calls < 3 or time.perf_counter_ns() < end:
        samples.append(timed(call, calls) / calls)
    gc.enable()
    return spread(samples)


class Peer:
    """The workloads prepared so far, and an answer to each line."""

    def __init__(self, name, version, build):
        self.hello_line = f"hello {name} {version}"
        self.build = build
        self.prepared = {}

    def answer(self, line):
        """The answer to one line; None to end."""
        match line.split():
            case ["hello"]:
                return self.hello_line
            case ["prepare", workload]:
                return self.prepare(workload)
            case ["time", workload, seconds] if workload in self.prepared:
                return self.time(workload, float(seconds))
            case ["time", workload, _]:
                return f"unsupported {workload} it isn't prepared"
            case ["memory", workload]:
                return self.memory(workload)
            case ["forget", workload]:
                self.prepared.pop(workload, None)
                gc.collect()
                return f"forgotten {workload}"
            case ["quit"]:
                return None
            case _:
                return f"error not understood: {line.strip()}"

    def prepare(self, workload):
        try:
            call, params = self.build(workload)
            self.prepared[workload] = call, calls_a_sample(call)
        except Unsupported as why:
            return f"unsupported {workload} {why}"
        except Exception as error:
            return f"unsupported {workload} {in_short(error)}"
        return f"ready {workload} params={params}"

    def time(self, workload, seconds):
        call, calls = self.prepared[workload]
        try:
            samples = sample(call, calls, seconds)
        except Exception as error:
            return f"unsupported {workload} {in_short(error)}"
        return " ".join([f"times {workload}", *(str(round(n)) for n in samples)])

    def memory(self, workload):
        """How far the process's memory grows at most, from before the workload is made to after three calls."""
        try:
            with open("/proc/self/clear_refs", "w") as marks:
                marks.write("5")
            before = status("VmRSS:")
            call, _ = self.build(workload)
            timed(call, 3)
            return f"memory {workload} {1024 * (status('VmHWM:') - before)}"
        except Exception as error:
            return f"unsupported {workload} {in_short(error)}"


def status(key):
    """A number of kibibytes that the system tells about this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))


def serve(name, version, build):
    """Answers stdin's lines until `quit` or the end of the input."""
    answers = private_stdout()
    peer = Peer(name, version, build)
    for line in sys.stdin:
        if not line.strip():
            continue
        answer = peer.answer(line)
        if answer is None:
            break
        print(answer, file=answers, flush=True)


def find(workload, families, *given):
    """Builds a workload with the first family that knows its name.

    A family is a pattern and a function, which is called with what is given and with the pattern's named groups.
    """
    for pattern, family in families:
        match = pattern.fullmatch(workload)
        if match:
            return family(*given, **match.groupdict())
    raise Unsupported("this peer has no such workload")
