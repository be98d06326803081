"""The commands of the command line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMMANDS", "Listed"]


class Listed(NamedTuple):
    """A command in the list of the help. Its module is imported when the command is called."""

    module: str
    summary: str


COMMANDS = {
    "demo": Listed("demo.command", "Watch a queue at work, and a worker killed midway."),
    "dev": Listed("dev", "Run a server, the web page and a worker, for development."),
    "worker": Listed("worker", "Run a worker, in one process or in several."),
    "healthy": Listed("worker", "Check a worker by its file."),
    "enqueue": Listed("jobs", "Add a job, or one for each line of stdin."),
    "peek": Listed("jobs", "Show the next jobs of a queue."),
    "errors": Listed("errors", "Count the dead letters of a queue by handler and error."),
    "scan": Listed("jobs", "List all jobs."),
    "show": Listed("jobs", "Show everything about one job."),
    "result": Listed("jobs", "Wait for the result of a job."),
    "dedup": Listed("jobs", "Show which job has a dedup id."),
    "queues": Listed("queues", "List the queues."),
    "top": Listed("top", "Watch all queues on a screen that refreshes itself."),
    "stats": Listed("queues", "Show how many jobs queues have in each state."),
    "pause": Listed("queues", "Stop deliveries, refuse new jobs, or both."),
    "hold": Listed("queues", "Deliver nothing for a time."),
    "resume": Listed("queues", "End a pause."),
    "configure": Listed("configure", "Show or change the settings of a queue."),
    "close": Listed("queues", "Refuse new jobs until reopen."),
    "reopen": Listed("queues", "Accept jobs again after a close."),
    "redrive": Listed("acting", "Make dead letters ready jobs again."),
    "cancel": Listed("acting", "Cancel jobs."),
    "delete": Listed("acting", "Remove jobs in any state."),
    "promote": Listed("acting", "Make jobs ready to be delivered now."),
    "postpone": Listed("acting", "Set ready jobs aside for the length of a lease."),
    "signal": Listed("acting", "Give a job the value that it waits for."),
    "evict": Listed("queues", "Make room on a full server."),
    "purge": Listed("queues", "Remove jobs from a queue, by state."),
    "clear": Listed("queues", "Remove whole queues."),
    "sweep": Listed("queues", "Remove expired jobs and idle queues."),
    "schedules": Listed("schedules", "List the schedules of a queue, or change one."),
    "batches": Listed("batches", "List the batches of a queue, or close one."),
    "workers": Listed("workers", "List the workers that run."),
    "check": Listed("check", "Say what is wrong now; exit code 1 if anything is."),
    "metrics": Listed("metrics", "Print figures of queues for Prometheus, or serve them."),
    "web": Listed("web", "Serve a page that shows queues and jobs."),
    "info": Listed("server", "Show the server and what it holds."),
    "nodes": Listed("nodes", "List nodes, or change one."),
    "doctor": Listed("doctor", "Find settings that break a promise."),
    "completion": Listed("completion", "Print a script that completes words in a shell."),
    "scripts": Listed("protocol", "List or write the Lua scripts."),
}
"""The commands, in the order of the help."""
