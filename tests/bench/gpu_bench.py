#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""bench gpu: what the preloaded library costs a job whose GPU posts: its hooks, in ns a call; and the rate of the producer
models with the library absent, present without a tracer, and present with one, by tier.

All ways of a model stand by and take turns of some tens of ms (model_job.py, paired.py): a ratio is of two turns of one
round, by processes that live all the time. On the fake driver: its copies cost what memcpy costs, not what a GPU's do.

`bench_gpu PART...` runs those parts only: hooks, or models by name. All take under five minutes.
"""
import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import traced_job  # noqa: E402
from model_job import ModelJob  # noqa: E402
from paired import UNSTEADY, Estimate, SideBySide, row  # noqa: E402
from traced_job import run_directory  # noqa: E402

WIDTH = 0.01        # of the interval of the ratio of present to absent, at most
GIVE_UP_SECONDS = 11  # after which the library gives a copy up, and reading with it: SamplerOptions::give_up_ns
MODEL_SECONDS = 30  # of rounds

# By tier, what makes the library read so. 0: copies that do not end, and it has given reading up.
TIERS = {0: {"environment": {"SIGMA_CUDA_HANG_AFTER": "0"}, "reads": True},
         1: {},
         2: {"gdrcopy": True, "reads": True},
         3: {"environment": {"SIGMATRACE_GPU_TIER": "3"}, "reads": True},
         5: {"environment": {"SIGMATRACE_GPU_TIER": "5"}, "reads": True}}
IN_DEVICE_MEMORY = (2, 3, 5)
MODELS = {
    "nvshmem": (["nvshmem"], (0, *IN_DEVICE_MEMORY)),
    "doca": (["doca"], IN_DEVICE_MEMORY),
    "ucx_gda": (["ucx_gda"], IN_DEVICE_MEMORY),
    "deepep": (["deepep"], IN_DEVICE_MEMORY),
    "mooncake": (["mooncake"], IN_DEVICE_MEMORY),
    "mooncake_host": (["mooncake", "--mode", "host"], (1,)),
    "rocshmem": (["rocshmem"], (1,)),
}


class Ways(SideBySide):
    """A model with the library absent, the same again, present, and traced by each tier."""
    FIGURES = ("rate",)
    TURN_SECONDS = 0.05

    def __init__(self, cores, words, tiers):
        self.tier = {f"tier{tier}": tier for tier in tiers}
        super().__init__(cores, ["absent", "present", "absent_again", *self.tier])
        reads = 1 not in tiers
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(run_directory())
            for way in self.ways:
                options = TIERS[self.tier[way]] if way in self.tier else {"reads": reads and way == "present"}
                job = stack.enter_context(ModelJob(os.path.join(directory, way), cores, words,
                                                   library=not way.startswith("absent"), **options))
                self.jobs[way] = job
                # A reader has to be on its core before it has a tracer; a ring on the host is found when it is made.
                if reads:
                    job.set_up()
                if way in self.tier:
                    output = os.path.join(directory, f"{way}.trace")
                    self.tracers[way] = stack.enter_context(traced_job.Tracer(job, ["--max-size", "256M"], output, cores.tracer))
                if not reads:
                    job.set_up()
                if self.tier.get(way) == 0:
                    job.run(GIVE_UP_SECONDS)
            self.stack = stack.pop_all()

    def end(self):
        """By way what its trace says of its rings, and what the library took of a core during its turns."""
        notes = {}
        for way, job in self.jobs.items():
            share = 100 * job.reader_ns() / job.running_ns
            job.end()
            notes[way] = f"its thread {share:.1f}% of a core" if job.reads else "no thread of its own"
            if way in self.tracers:
                rings = [qp["observed"] for qp in self.tracers[way].wait()["qps"] if qp["observed"]]
                # On the host the tracer reads, and where there is no CUDA nobody says whose rings these are.
                rings = [ring for ring in rings if (ring["origin"] == "library" if job.reads else ring["blocks_posted"])]
                wanted = {1, None} if self.tier[way] == 1 else {self.tier[way]}
                if not rings or not {ring["tier"] for ring in rings} <= wanted:
                    raise traced_job.Failed(f"{way}: read otherwise: {rings}")
                posted, seen = (sum(ring[f"blocks_{key}"] for ring in rings) for key in ("posted", "seen"))
                notes[way] += f"; {100 * seen / max(1, posted):.1f}% of blocks seen"
        return notes


def model(cores, name, pairs):
    """Adds to `pairs`, the ratios of all models."""
    words, tiers = MODELS[name]
    with Ways(cores, words, tiers) as ways:
        rounds = ways.compare(MODEL_SECONDS, known=0, sparse=ways.ways[2:])
        notes = ways.end()
        rates = Estimate.of([round.results["absent"].rate / 1e3 for round in rounds.rounds])
        row(f"gpu.{name}.absent", rates.median, "k ops/s", reason=f"{rates.spread}; {rounds.where()}")
        for way in ways.ways[1:]:
            estimate = Estimate.of(rounds.ratios(way))
            row(f"gpu.{name}.{way}", estimate.median, "x of absent",
                reason=estimate.spread + ("" if way == "absent_again" else f"; {notes[way]}"))
        for way, of_all in pairs.items():
            of_all += rounds.ratios(way)


def hooks():
    sys.stdout.flush()
    subprocess.run([os.path.join(traced_job.PROGRAMS, "bench_gpu_hooks")], check=True)


def main():
    traced_job.end_by_sigterm()
    parts = sys.argv[1:] or ["hooks", *MODELS]
    if "hooks" in parts:
        hooks()
    cores, pairs = traced_job.find_cores(), {"absent_again": [], "present": []}
    for name in parts:
        if name in MODELS:
            model(cores, name, pairs)
    if pairs["present"]:
        again, present = (Estimate.of(of_all) for of_all in pairs.values())
        row("gpu.absent_again", again.median, "x of absent, all models", reason=again.spread)
        narrow, holds = present.high - present.low < WIDTH, present.low <= 1 <= present.high
        # A wide interval decides nothing, unless it leaves 1 out.
        row("gpu.present", present.median, "x of absent, all models", 1, narrow and holds,
            present.spread + ("" if narrow or not holds else "; " + UNSTEADY))


if __name__ == "__main__":
    main()
