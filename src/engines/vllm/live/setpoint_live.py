"""Sets limits of vLLM's scheduler in a running server, while it is idle.

`--scheduler-cls setpoint_live.LiveScheduler` names the class; PYTHONPATH finds this file. The class is the scheduler that
vLLM would choose itself. When a request arrives and no other is unfinished, it reads `settings.json` beside this file:

    {"version": 3, "settings": {"max-num-seqs": 64, "enable-prefix-caching": null}}

`null` is the launched value. It sets the values, empties the prefix cache, and writes `state.json`:

    {"version": 3, "values": {"max-num-seqs": 64, "enable-prefix-caching": true}}
    {"version": 3, "refused": "max-num-seqs: 512 is above the launched 256"}

The first state has version 0 and the launched values of the knobs that this release has. If vLLM's scheduler differs from
what this file expects, the state has a reason and the scheduler stays as it is.
"""

import json
import os

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

FOLDER = os.path.dirname(os.path.abspath(__file__))


class Knob:
    """A limit: the object that holds it, the attribute, and the code that must read it at each use."""

    def __init__(self, holder, attribute, reader, is_limit=False, only_off=False, scale=None):
        self.holder = holder
        self.attribute = attribute
        self.reader = reader
        self.is_limit = is_limit
        self.only_off = only_off
        self.scale = scale

    def is_present(self, scheduler):
        code = getattr(self.reader(scheduler), "__code__", None)
        return hasattr(self.holder(scheduler), self.attribute) and code is not None and self.attribute in code.co_names

    def read(self, scheduler):
        value = getattr(self.holder(scheduler), self.attribute)
        return value / self.scale(scheduler) if self.scale else value

    def write(self, scheduler, value):
        value = int(value * self.scale(scheduler) + 1e-6) if self.scale else value
        setattr(self.holder(scheduler), self.attribute, value)

    def problem(self, launched, value):
        """Returns why the running server cannot take a value, or None."""
        if self.scale:
            return None if 0.0 <= value < 1.0 else f"{value} is not a share below 1"
        if isinstance(launched, bool) != isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is of another type than the launched {launched!r}"
        if self.is_limit and not 1 <= value <= launched:
            return f"{value} is not between 1 and the launched {launched}"
        if self.only_off and value and not launched:
            return "it was launched off, and can only be switched off"
        return None if value >= 0 else f"{value} is negative"


def itself(scheduler):
    return scheduler


def config(scheduler):
    return scheduler.scheduler_config


def cache(scheduler):
    return scheduler.kv_cache_manager


def schedule(_):
    return Scheduler.schedule


def cache_lookup(scheduler):
    manager = type(cache(scheduler))
    return getattr(manager, "prefix_cache_lookup_enabled", manager.get_computed_blocks)


def allocate(scheduler):
    return type(cache(scheduler)).allocate_slots


def blocks(scheduler):
    return scheduler.kv_cache_config.num_blocks


# Since 0.32 the admission has a limit of its own (`max_num_active_reqs`). Before that it was `max_num_running_reqs`.
KNOBS = {
    "max-num-seqs": [
        Knob(itself, "max_num_active_reqs", schedule, is_limit=True),
        Knob(itself, "max_num_running_reqs", schedule, is_limit=True),
    ],
    "max-num-batched-tokens": [Knob(itself, "max_num_scheduled_tokens", schedule, is_limit=True)],
    "long-prefill-token-threshold": [Knob(config, "long_prefill_token_threshold", schedule)],
    "long-prefill-token-threshold-adaptive": [Knob(itself, "adaptive_long_prefill_threshold", schedule)],
    "scheduler-reserve-full-isl": [Knob(itself, "scheduler_reserve_full_isl", schedule)],
    "enable-prefix-caching": [Knob(cache, "enable_caching", cache_lookup, only_off=True)],
    "watermark": [Knob(cache, "watermark_blocks", allocate, scale=blocks)],
}


class Busy(Exception):
    """The engine still holds blocks of a request that has ended."""


class Control:
    """The knobs of one scheduler, and the files that they are read from and reported in."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.version = 0
        self.modified = None
        found = {name: next((knob for knob in ways if knob.is_present(scheduler)), None) for name, ways in KNOBS.items()}
        self.knobs = {name: knob for name, knob in found.items() if knob}
        # The launched values. A limit that the launch itself sets lower stays its own value.
        self.launched = self.values()
        if self.knobs:
            self.report(values=self.launched)
        else:
            self.report(refused="this release of vLLM has none of the expected limits")

    def values(self):
        return {name: knob.read(self.scheduler) for name, knob in self.knobs.items()}

    def report(self, **state):
        path = os.path.join(FOLDER, "state.json")
        with open(path + ".new", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump({"version": self.version, **state}, file)
        os.replace(path + ".new", path)

    def poll(self):
        """Applies new settings. An error leaves the scheduler as it was."""
        path = os.path.join(FOLDER, "settings.json")
        try:
            modified = os.stat(path).st_mtime_ns
            if modified == self.modified:
                return
            with open(path) as file:
                asked = json.load(file)
        except (OSError, ValueError):
            # There are no settings yet. The tuner replaces the file at once, so that a part of it is never read.
            return
        try:
            self.apply(asked["settings"])
            result = {"values": self.values()}
        except Busy:
            # The next request tries again.
            return
        except Exception as error:  # noqa: BLE001
            result = {"refused": f"{type(error).__name__}: {error}"}
        self.modified = modified
        self.version = asked.get("version")
        self.report(**result)

    def apply(self, settings):
        wanted = {}
        for name, value in settings.items():
            if name not in self.knobs:
                raise KeyError(f"{name} is no live knob of this release")
            launched = self.launched[name]
            wanted[name] = launched if value is None else value
            problem = None if value is None else self.knobs[name].problem(launched, value)
            if problem:
                raise ValueError(f"{name}: {problem}")
        if not self.scheduler.reset_prefix_cache():
            raise Busy
        for name, value in wanted.items():
            self.knobs[name].write(self.scheduler, value)


class Live:
    """The part of both scheduler classes that differs from vLLM's own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        try:
            self._live = Control(self)
        except Exception as error:  # noqa: BLE001
            # The launch must not depend on this file.
            self._live = None
            with open(os.path.join(FOLDER, "state.json"), "w") as file:
                json.dump({"version": 0, "refused": f"{type(error).__name__}: {error}"}, file)

    def add_request(self, request):
        if self._live is not None and self.get_num_unfinished_requests() == 0:
            self._live.poll()
        super().add_request(request)


class LiveSyncScheduler(Live, Scheduler):
    pass


class LiveScheduler(Live, AsyncScheduler):
    def __new__(cls, vllm_config, *args, **kwargs):
        if cls is LiveScheduler and not vllm_config.scheduler_config.async_scheduling:
            # An instance of another class is returned as it is.
            return LiveSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)
