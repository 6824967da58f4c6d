"""The long forms: see `--help`."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from functools import partial

import anyio

from tests.proof.approvals import prove_approvals
from tests.proof.bursts import prove_bursts, prove_ids
from tests.proof.commits import prove_commits
from tests.proof.drive import Broken, drive
from tests.proof.kills import prove
from tests.proof.ledger import prove_ledger
from tests.proof.payments import prove_payments
from tests.proof.results import prove_results
from tests.proof.victims import url_in

A_WORLD = 500
"""Operations in one world; then another begins, with the next seed."""
IN_FILES = 5
"""Every so many worlds one keeps its sessions in files."""


def tell(text):
    print(text, flush=True)  # noqa: T201 - this is a command


def operate(count, seed):
    taken = Counter()
    for number in range(0, count, A_WORLD):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            in_files = number // A_WORLD % IN_FILES == IN_FILES - 1
            operations = min(A_WORLD, count - number)
            taken += Counter(anyio.run(drive, seed, operations, folder if in_files else None))
        seconds = time.monotonic() - begun
        tell(f"seed {seed}: {operations} operations {'in files ' * in_files}{seconds:.1f} s")
        seed += 1
    tell(f"{taken.total()} operations, no violation:")
    tell(", ".join(f"{name} {times}" for name, times in taken.most_common()))


def kill(count, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(prove, url_in(folder, store), count, seed)
    tell(f"{store}: {report}")


def commit(commits, kills, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(prove_commits, url_in(folder, store), commits, kills, seed)
    tell(f"{store}: {report}")


def keep_ledger(kills, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        prove = partial(prove_ledger, messages=max(1000, 10 * kills))
        report = anyio.run(partial(prove, folder, store, kills=kills, seed=seed))
    tell(f"{store}: {report}")


def send_bursts(bursts, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(partial(prove_bursts, folder, store, bursts=bursts, seed=seed))
    tell(f"{store}: {report}")


def send_twice(ids, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(partial(prove_ids, folder, store, ids=ids, seed=seed))
    tell(f"{store}: {report}")


def run_tools(kills, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(prove_results, url_in(folder, store), folder, kills, seed)
    tell(f"{store}: {report}")


def approve(kills, store):
    with tempfile.TemporaryDirectory() as folder:
        report = anyio.run(partial(prove_approvals, folder, store, kills=kills))
    tell(f"{store}: {report}")


def pay(payments, kills, seed, store):
    with tempfile.TemporaryDirectory() as folder:
        prove = partial(prove_payments, folder, store, payments=payments, kills=kills, seed=seed)
        report = anyio.run(prove)
    tell(f"{store}: {report}")


def kill_among(args):
    """Kill, in the middle of what was asked for."""
    if args.commits:
        commit(args.commits, args.kills, args.seed, args.store)
    elif args.ledger:
        keep_ledger(args.kills, args.seed, args.store)
    elif args.payments:
        pay(args.payments, args.kills, args.seed, args.store)
    elif args.approvals:
        approve(args.kills, args.store)
    elif args.tools:
        run_tools(args.kills, args.seed, args.store)
    elif args.kills:
        kill(args.kills, args.seed, args.store)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=0, help="random steps of all kinds")
    parser.add_argument("--kills", type=int, default=0, help="kill -9 of a real process")
    parser.add_argument(
        "--commits", type=int, default=0, help="commits in all, with --kills in the middle of them"
    )
    parser.add_argument(
        "--payments", type=int, default=0, help="payments over a bad line, with --kills among them"
    )
    parser.add_argument("--bursts", type=int, default=0, help="so many bursts, a kill after each")
    parser.add_argument("--ids", type=int, default=0, help="messages, each twice to two daemons")
    parser.add_argument("--tools", action="store_true", help="--kills while tools run side by side")
    parser.add_argument("--approvals", action="store_true", help="--kills around a person's yes")
    parser.add_argument("--ledger", action="store_true", help="--kills of one of two daemons")
    parser.add_argument("--store", default="jsonl", help="jsonl, sqlite, or a store's URL")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        if args.operations:
            operate(args.operations, args.seed)
        if args.bursts:
            send_bursts(args.bursts, args.seed, args.store)
        if args.ids:
            send_twice(args.ids, args.seed, args.store)
        kill_among(args)
    except Broken as broken:
        sys.exit(str(broken))


if __name__ == "__main__":
    main()
