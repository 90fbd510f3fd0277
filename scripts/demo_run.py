"""Runs the demo's jobs under torchrun, one after the other, and hands their results to the report.

    scripts/demo_run.py [--backends gloo,ringcomm] [--ranks 2,4] [--jobs ddp_digits,fsdp_chars] [--seed 0] [--quick]
                        [--hosts 2 [--rate 1gbit]]

With --hosts each job also runs with its ranks spread over so many hosts, network namespaces (scripts/net_lab).
Logs and results stay in build/demo. Exit status 0 if every run completed and every check of the report holds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from demo_report import JOBS, Run, report

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "demo"
BACKENDS = ("gloo", "ringcomm")
LIMIT = 600.0  # seconds for one run; it takes well under 60 on two cores
PROGRESS = "  step "  # what a job prints for people; everything else only goes to its log


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="gloo,ringcomm", help="default: %(default)s")
    parser.add_argument("--ranks", default="2,4", help="default: %(default)s")
    parser.add_argument("--jobs", default=",".join(JOBS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="a third of the steps, and the lower goals that go with them"
    )
    parser.add_argument(
        "--hosts", type=int, default=1, help="each job also with its ranks on so many hosts of the net lab"
    )
    parser.add_argument("--rate", help="what each of these hosts may send, such as 1gbit; no limit if not given")
    args = parser.parse_args()
    for name, given, known in (("--jobs", args.jobs, tuple(JOBS)), ("--backends", args.backends, BACKENDS)):
        unknown = [word for word in given.split(",") if word not in known]
        if unknown:
            parser.error(f"{name}: there is no {unknown[0]!r}; there are {', '.join(known)}")
    try:
        args.ranks = [int(ranks) for ranks in args.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks: {args.ranks!r} is not a list of numbers such as 2,4")
    uneven = [ranks for ranks in args.ranks if args.hosts < 1 or ranks % args.hosts]
    if uneven:
        parser.error(f"--hosts is {args.hosts}: {uneven[0]} ranks cannot be shared out evenly")
    if args.rate and args.hosts == 1:
        parser.error("--rate is for hosts of the lab; give --hosts too")
    return args


def launcher(ranks: int, hosts: int, rate: str | None) -> list[str]:
    """torchrun for so many ranks: here, or on each host of the lab."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks // hosts}"]
    if hosts == 1:
        return [*torchrun, "--standalone"]
    lab = [sys.executable, str(ROOT / "scripts" / "net_lab_run.py"), f"--hosts={hosts}"]
    lab += [f"--rate={rate}"] if rate else []
    return [
        *lab,
        "--",
        *torchrun,
        "--nnodes={hosts}",
        "--node-rank={host}",
        "--master-addr={first}",
        "--master-port=29500",
    ]


def run_job(job: str, backend: str, ranks: int, hosts: int, args: argparse.Namespace) -> Run:
    """One training run. Never raises for what happens in it: a Run without a result says why in `problem`."""
    name = f"{job}-{backend}-{ranks}" + (f"-{hosts}hosts" if hosts > 1 else "")
    result, log = FOLDER / f"{name}.json", FOLDER / f"{name}.log"
    result.unlink(missing_ok=True)
    script = ROOT / "scripts" / "demo_jobs" / f"{job}.py"
    steps = JOBS[job].quick_steps if args.quick else JOBS[job].steps
    command = [*launcher(ranks, hosts, args.rate), str(script)]
    command += [f"--backend={backend}", f"--seed={args.seed}", f"--steps={steps}", f"--json={result}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RINGCOMM_DEBUG": "INFO", "PYTHONUNBUFFERED": "1"}
    if hosts > 1:
        environment["GLOO_SOCKET_IFNAME"] = "eth0"  # a host's own name resolves to 127.0.1.1 there
    spread = f" on {hosts} hosts" if hosts > 1 else ""
    print(f"== {job} over {backend} at {ranks} ranks{spread}, {steps} steps", flush=True)
    start, others_before = time.monotonic(), seconds_of_others()
    status = run_logged(command, environment, log)
    seconds = time.monotonic() - start
    others = max(0.0, seconds_of_others() - others_before) / seconds
    problem = None
    if status != 0:
        problem = f"ended with status {status} after {seconds:.0f} s" + (" (its limit)" if seconds >= LIMIT else "")
    elif not result.exists():
        problem = "ended well but wrote no result"
    if problem:
        print(f"  {problem}; log: {log}\n" + "".join(f"  | {line}\n" for line in last_lines(log, 12)), flush=True)
    values = None if problem else json.loads(result.read_text())
    return Run(job, backend, ranks, values, log.read_text(errors="replace"), seconds, problem, hosts, others)


def seconds_of_others() -> float:
    """Processor seconds since the machine began that neither this process nor one it has waited for had."""
    words = Path("/proc/stat").read_text().split("\n")[0].split()
    user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])  # proc(5), in ticks
    all_busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return all_busy - sum(usage.ru_utime + usage.ru_stime for usage in own)


def run_logged(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Runs it with all output in `log` and progress on the terminal; after LIMIT seconds ends it with all its ranks."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        # torchrun and its workers are one process group of ours, so this ends nothing else.
        timer = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if PROGRESS in line:
                    print(line, end="", flush=True)
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()


def last_lines(log: Path, count: int) -> list[str]:
    """The lines most likely to say what happened: exceptions first named, else simply the end of the log."""
    lines = log.read_text(errors="replace").splitlines()
    named = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return (named or lines)[-count:]


def main() -> int:
    args = arguments()
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs = [
        run_job(job, backend, ranks, hosts, args)
        for job in args.jobs.split(",")
        for ranks in args.ranks
        for hosts in sorted({1, args.hosts})
        for backend in args.backends.split(",")
    ]
    text, good = report(runs, args.quick)
    print(text)
    (FOLDER / "report.txt").write_text(text + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
