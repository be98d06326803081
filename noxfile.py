"""The tasks of this repository; `nox --list` names them, arguments follow `--`.

Every session runs on the interpreter that runs nox, and needs nothing but a package index.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["quick", "tests"]
nox.options.error_on_missing_interpreters = True  # a leg that is skipped must not look green
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each worker compiles all tests in each run

CORES = os.cpu_count() or 1
# Most tests wait, also in a whole run; long ones come last, and are shared out.
WORKERS = ("-n", str(min(8, 3 * CORES)), "--dist", "worksteal")
# Long tests come first (tests/nodes/conftest.py), and each worker takes the next test.
NODES_WORKERS = ("-n", str(min(8, 3 * CORES)), "--dist", "load", "--maxschedchunk", "1")
# These tests never wait.
QUICK_WORKERS = ("-n", str(min(4, CORES + 1)), "--dist", "worksteal")
# Each has a JVM, and starts others, or a Chromium: more would wait for one another's cores.
HEAVY_WORKERS = ("-n", "2", "--dist", "worksteal")
# It says on stdout if it can't use the file of classes, where programs are read.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable"
# These have sessions of their own.
APART = ("--ignore", "tests/nodes", "--ignore", "tests/spark", "--ignore", "tests/browser")
SUITES = ("tests/_async", "tests/conformance")
# Servers with the Python that they are tested on: each once. One that is not there is left out.
MATRIX = [
    ("3.10", "redis-6.2"),
    ("3.11", "first"),
    ("3.11", "fakeredis"),
    ("3.12", "valkey-8.1"),
    ("3.13", "redis-8.0"),
    ("3.13", "valkey-9.1"),
    ("3.14", "newest"),
]
UNPACKED = Path(".servers")
# The rules, without a server: states, ids and options, every script by its vectors, and the model.
QUICK = (
    *("-q", "--whole", "--hypothesis-profile", "short", "-k", "not at_any_time"),
    *("tests/core", "tests/protocol/test_vectors.py", "tests/model"),
)
ON_FAKEREDIS = {"PENSTOCK_TEST_BACKENDS": "fakeredis"}
PYPROJECT = nox.project.load_toml("pyproject.toml")
TESTS_FAILED = "Returned code 1"
"""The reason of nox for this exit code of pytest; with others no tests were found or run."""


def groups(*names: str) -> list[str]:
    """The requirements of dependency groups, for a pip of any age."""
    return list(nox.project.dependency_groups(PYPROJECT, *names))


def check_types(session: nox.Session, *args: str) -> None:
    """Run mypy with these arguments, and pyright on tests/typing."""
    session.run("mypy", *args)
    session.run("pyright", env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})  # looks for no newer one


def run_tests(session: nox.Session, *args: str, env: dict[str, str] | None = None) -> None:
    """Run pytest. With PENSTOCK_REPEAT_FAILED=1 failed tests run once more, one after the other,
    until one fails again.

    A test that passes then depends on luck: `.ci/run` prints its name, and fails the second time.
    """
    repeats = os.environ.get("PENSTOCK_REPEAT_FAILED") == "1"
    # Hypothesis draws the same again, so what it finds stays a failure.
    args += (f"--hypothesis-seed={secrets.randbits(32)}",) if repeats else ()
    try:
        session.run("pytest", *args, env=env)
    except CommandFailed as error:
        if not repeats or error.reason != TESTS_FAILED:
            raise
        session.run("pytest", *args, "-n", "0", "-x", "--last-failed", env=env)


def compile_tests(session: nox.Session) -> None:
    """Compile the tests of a new clone, a part of the folders on each core.

    Otherwise each worker of xdist does it for itself. In a clone without bytecode six workers take
    69 s of CPU to collect; this takes 13 s, and they take 30 s after it.
    """
    compiled = f"__pycache__/*.{sys.implementation.cache_tag}-pytest-*.pyc"
    folders = [
        str(folder)
        for folder in sorted(Path("tests").iterdir())
        if any(folder.glob("test_*.py")) and not any(folder.glob(compiled))
        if f"tests/{folder.name}" not in APART
    ]

    def collect(at: int) -> None:
        options = ("--collect-only", "-qq", "-n", "0")
        session.run("pytest", *options, *folders[at::CORES], silent=True)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(collect, at) for at in range(min(CORES, len(folders)))]:
            done.result()


@nox.session
def quick(session: nox.Session) -> None:
    """Check style, types and generated files, and run the tests that need no server.

    Two commands at a time, in one environment: in under a minute when that is there.
    """
    session.install("-e", ".", *groups("test", "lint", "types"))

    def check() -> None:
        session.run("ruff", "check")
        session.run("ruff", "format", "--check")
        session.run("python", "tools/unasync.py", "--check")
        session.run("python", "tools/replies.py", "--check")
        session.run("python", "tools/protocol.py", "--check")
        check_types(session)

    def test() -> None:
        session.run("pytest", *QUICK, *QUICK_WORKERS, *session.posargs, env=ON_FAKEREDIS)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(check), pool.submit(test)]:
            done.result()


@nox.session
def demo(session: nox.Session) -> None:
    """Show a queue at work on a server of its own: nothing has to be installed or running."""
    session.install(".[demo]")
    session.run("penstock", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on fakeredis and one server, in five minutes; arguments go to pytest.

    `-- --whole` runs every case, PENSTOCK_TEST_BACKENDS chooses the back ends.
    """
    session.install(".", *groups("test"))
    compile_tests(session)
    run_tests(session, *APART, *WORKERS, *session.posargs)


@nox.session
def nodes(session: nox.Session) -> None:
    """Run the tests that need several servers at once, or minutes; arguments go to pytest.

    Before them the suites of one server, on a Redis Cluster of three primaries; without those of
    the protocol pressure, whose keys share no hash tag.
    """
    session.install(".", *groups("test"))
    servers = os.environ.get("PENSTOCK_TEST_BACKENDS", "first").replace("fakeredis", "")
    on_several(session, SUITES, servers)


def on_several(session: nox.Session, suites: Iterable[str], servers: str) -> None:
    """Run suites on a cluster, and the tests of several servers."""
    clustered = {"PENSTOCK_TEST_BACKENDS": f"cluster {servers}"}
    options = (*WORKERS, *session.posargs)
    run_tests(session, "-k", "cluster and not pressure", *suites, *options, env=clustered)
    options = (*NODES_WORKERS, *session.posargs)
    run_tests(session, "tests/nodes", *options, env={"PENSTOCK_TEST_BACKENDS": servers})


@nox.session
def mutate(session: nox.Session) -> None:
    """Put small faults into the code, one at a time, and report which tests notice.

    `-- --count 300 --seed 2 --whole`; the rest of the arguments chooses tests.
    """
    session.install("-e", ".", *groups("mutate"))
    session.run("python", "-m", "tools.mutate", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Run simulated systems, each from a seed.

    `-- --seeds 1000`; `-- --seconds 240 --processes 2` runs new ones; `-- --seed 17` repeats one.
    """
    session.install("-e", ".", *groups("test"))
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
@nox.parametrize("python, servers", MATRIX, ids=[servers for _, servers in MATRIX])
def matrix(session: nox.Session, servers: str) -> None:
    """Run the tests on every server, each with another Python: `nox -s "matrix(redis-8.0)"`.

    A short run, as `tests` and `nodes` make; `-- --whole` runs every case.
    """
    session.install(".", *groups("test"))
    session.run("python", "tools/servers.py", str(UNPACKED))
    more = os.pathsep.join(map(str, UNPACKED.resolve().glob("*/*-[0-9]*")))
    session.env.update(PENSTOCK_TEST_SERVERS=more, PENSTOCK_TEST_BACKENDS=servers)
    try:
        run_tests(session, *APART, *WORKERS, *session.posargs)
    finally:  # a leg reports on all its tests
        if servers != "fakeredis":
            on_several(session, (*SUITES, "tests/_sync"), servers)


def need_java(session: nox.Session) -> None:
    """End the session, with a line that says so, where Spark can't run."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        session.error("Spark needs Java 17 or newer (Debian: default-jre-headless): there is none")


@nox.session
def spark(session: nox.Session) -> None:
    """Run the tests of the Spark data source, which need Java; arguments go to pytest."""
    need_java(session)
    session.install(".", *groups("spark"))
    classes = Path(session.virtualenv.location, "spark.jsa")
    session.run_install("python", "-m", "tests.spark.classes", str(classes), silent=True)
    options = {"JAVA_TOOL_OPTIONS": f"{QUICK_JVM} -XX:SharedArchiveFile={classes}"}
    run_tests(session, "tests/spark", *HEAVY_WORKERS, *session.posargs, env=options)


@nox.session
def browser(session: nox.Session) -> None:
    """Run the tests of the web page and of the documentation site in Chromium.

    Arguments go to pytest.

    PENSTOCK_SCREENSHOTS=docs/images also writes the screenshots of the docs.
    """
    if not any(map(shutil.which, ("chromium", "chromium-browser", "chrome"))):
        session.error("pages are tested in Chromium (Debian: chromium): there is none")
    session.install(".[cli,web]", *groups("browser", "docs"))
    build_site(session)
    run_tests(session, "tests/browser", *HEAVY_WORKERS, *session.posargs)


@nox.session(name="spark-versions")
@nox.parametrize("version", ["4.0", "4.1", "4.2", "newest"], ids=["4.0", "4.1", "4.2", "newest"])
def spark_versions(session: nox.Session, version: str) -> None:
    """Write, read and stream on one version of Spark: `nox -s "spark-versions(4.0)"`."""
    need_java(session)
    pyspark = "pyspark" if version == "newest" else f"pyspark=={version}.*"
    session.install(".[demo,spark]", pyspark)
    session.run("python", "tests/spark/smoke.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install(*groups("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the library and of the code that uses it in tests/typing."""
    session.install("-e", ".", *groups("types"))
    check_types(session, *session.posargs)


@nox.session
def sync(session: nox.Session) -> None:
    """Write the synchronous code from the asynchronous; `-- --check` only compares."""
    session.install(*groups("lint"))
    session.run("python", "tools/unasync.py", *session.posargs)


@nox.session
def protocol(session: nox.Session) -> None:
    """Write the generated parts of the protocol, and the replies; `-- --check` only compares."""
    session.install(".", *groups("lint"))
    session.run("python", "tools/replies.py", *session.posargs)
    session.run("python", "tools/protocol.py", *session.posargs)


@nox.session(name="format")
def format_(session: nox.Session) -> None:
    """Sort imports and format everything."""
    session.install(*groups("lint"))
    session.run("ruff", "check", "--select", "I", "--fix", *session.posargs)
    session.run("ruff", "format")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/site; a warning or a broken link is an error."""
    session.install("-e", ".[cli,web]", *groups("docs"))
    build_site(session, *session.posargs)


def build_site(session: nox.Session, *args: str) -> None:
    """Build the documentation site into build/site; a warning is an error."""
    session.run("mkdocs", "build", "--strict", *args, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def release(session: nox.Session) -> None:
    """Build the package, check it, install it into an environment of its own, and run it there.

    The files are in `dist`. Nothing is uploaded.
    """
    session.install("build", "check-wheel-contents", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", silent=True)
    [wheel] = Path("dist").glob("*.whl")
    # W009: Spark and pytest find their plugins as packages beside penstock.
    session.run("check-wheel-contents", "--ignore", "W009", str(wheel))
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    fresh = Path(session.create_tmp(), "fresh").resolve()
    shutil.rmtree(fresh, ignore_errors=True)
    session.run("python", "-m", "venv", str(fresh))
    python = str(fresh / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-q", f"{wheel}[embedded]", external=True)
    session.run(python, "tools/newcomer.py", "README.md", external=True)
    if "penstock.example" in Path("pyproject.toml").read_text(encoding="utf-8"):
        session.warn("before an upload, write the repository's address into pyproject.toml")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure; arguments go to `python -m benchmarks`. The section `spark` needs Java."""
    session.install(".[demo,spark]", *groups("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)
