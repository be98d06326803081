"""The effects of `import penstock`."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import penstock
from penstock import Enqueued, PenstockError, Queue, pressure
from penstock.core.enqueuing.options import EnqueueOptions
from penstock.embedded import EmbeddedServerError
from penstock.pressure import errors

PACKAGE = Path(penstock.__file__).parent
CORE = PACKAGE / "core"
FILES = {
    ".".join(("penstock", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""The modules of the package."""
ROOMS = ("values", "jobs", "enqueuing", "calls", "flows", "nodes")
"""Folders of core: each imports only from those before it."""
SETTERS = ("penstock.cli.app", "penstock.core.jobs.logs", "penstock.wire.replies")
"""Modules that call `setattr`: for streams, for texts of a log record, for the items of a reply."""
NAMES = """
import sys
from penstock import {}
print(*sorted(name for name in sys.modules if name.startswith("penstock.")))
"""


TYPES_IMPORTED_LATER = (
    *("AsyncNodes", "BoundOptions", "Handlers", "Hello", "Info", "Nodes", "ScheduleView"),
    *("ErrorGroups", "Problem", "QueueHistory", "WorkerView", "AsyncQueueChains", "QueueChains"),
    *("AsyncJobSearch", "JobSearch", "JobEvent"),
)
"""Types that a module imports when one of its methods is called."""


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield name and function of each public method of a public class, and of `__init__`."""
    for one in (*(getattr(penstock, name) for name in penstock.__all__), pressure.PressureQueue):
        for name, function in inspect.getmembers(one, inspect.isfunction):
            is_public = name == "__init__" or not name.startswith("_")
            if inspect.isclass(one) and is_public and function.__module__.startswith("penstock"):
                yield f"{one.__name__}.{name}", function


@pytest.mark.parametrize("name, other", [("Penstock", "_async"), ("AsyncPenstock", "_sync")])
def test_the_other_client_and_workers_are_imported_when_they_are_asked_for(
    name: str, other: str
) -> None:
    """An enqueueing program imports neither the other client nor the worker nor extras."""
    code = NAMES.format(name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "penstock.core.calls.call" in loaded
    assert len(loaded) < 120
    apart = (f"penstock.client.{other}", "penstock.worker", "penstock.spark", "penstock.cli.")
    assert [name for name in loaded if name.startswith(apart)] == []


def test_every_name_is_there() -> None:
    """Every name is available, whether it is imported at once or on access."""
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert not hasattr(penstock, "AsyncNothing")


def test_methods_are_named_after_public_classes() -> None:
    """The TypeError of a wrong call names no internal class."""
    names = {*penstock.__all__, *pressure.__all__}
    found = {function.__qualname__ for name, function in public_functions() if "__" not in name}
    assert "Queue.postpone" in found
    assert {name for name in found if name.partition(".")[0] not in names} == set()


def test_annotations_of_public_methods_can_be_read() -> None:
    """Tools such as pydantic read them; those of an enqueue have the type of each option."""
    later = dict.fromkeys(TYPES_IMPORTED_LATER, object)
    found = {name: get_type_hints(one, localns=later) for name, one in public_functions()}
    options = get_type_hints(EnqueueOptions)
    assert found["Queue.enqueue"] == {"body": Any, **options, "return": Enqueued}
    assert inspect.signature(Queue.enqueue).parameters.keys() - {"self"} == {"body", *options}


def test_methods_of_public_classes_can_be_pickled() -> None:
    """A process pool passes methods by module and name."""
    for name, function in public_functions():
        assert pickle.loads(pickle.dumps(function)) is function, name


def test_errors_of_one_part_are_imported_from_it() -> None:
    """Those of pressure and of the embedded server are not among the names of the package."""
    own = {*errors.__all__, "EmbeddedServerError"}
    assert all(issubclass(getattr(errors, name), PenstockError) for name in errors.__all__)
    assert issubclass(EmbeddedServerError, PenstockError)
    assert own.isdisjoint(dir(penstock))
    assert set(errors.__all__) <= set(pressure.__all__)


def test_dir_has_every_name() -> None:
    """`dir` has every name, also names not yet imported."""
    code = "import penstock; print(*dir(penstock))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(penstock.__all__) <= set(done.stdout.split())
    assert "__version__" in done.stdout.split()


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_core_import_one_way(room: str) -> None:
    """A room of core imports itself and the rooms before it, also for types only."""
    upper = ROOMS[ROOMS.index(room) + 1 :]
    found = [
        f"{path.relative_to(CORE)} imports {node.module}"
        for path in (CORE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for module in [f"{node.module}.", *(f"{node.module}.{one.name}." for one in node.names)]
        if module.startswith(tuple(f"penstock.core.{other}." for other in upper))
    ]
    assert found == []


def test_core_is_rooms_only() -> None:
    """Each module of core lies in a room."""
    assert {path.name for path in CORE.iterdir()} - {"__pycache__"} == {"__init__.py", *ROOMS}


def imports_of(path: Path) -> Iterator[str]:
    """Return the modules that a file imports: at once, for types only, or in a function."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names = {f"{node.module}.{one.name}" for one in node.names}
            yield from names & FILES.keys() or {str(node.module)}
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))


def test_no_file_is_part_of_a_circle_of_imports() -> None:
    """It also counts imports for types only, and those that a function makes when it is called."""
    graph = {name: {*imports_of(path)} & FILES.keys() - {name} for name, path in FILES.items()}
    assert len(graph["penstock.client._async.topology"]) > 10
    TopologicalSorter(graph).prepare()  # a CycleError names the files


def test_a_method_is_found_by_its_name() -> None:
    """No object changes its class, no `__getattr__` forwards, no method is put in by `setattr`.

    A queue is of one class, with few others above it.

    `__getattr__` of a module is allowed: it imports names when they are asked for.
    """
    for name, path in FILES.items():
        tree = ast.parse(path.read_text("utf-8"))
        modules = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                assert not [one for one in targets if ast.unparse(one).endswith(".__class__")], name
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.name != "__getattr__" or node in modules, name
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                assert name in SETTERS, name
    assert Queue.__subclasses__() == []
    assert len(Queue.__mro__) - 1 <= 6  # object is one of them
