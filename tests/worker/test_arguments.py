# ruff: noqa: D103, UP007, UP045, RUF013  # signatures of all kinds, old spellings too, are the data
"""Bodies are bound to parameters by name or position and checked; only Unfit is raised."""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import BadArgument, Job
from penstock.core.jobs.job import Delivery
from penstock.core.jobs.record import encode_body
from penstock.worker import Conversion, Handler, Handlers, State, Unfit
from penstock.worker.arguments import Misfit, Parameters
from tests.worker.deliveries import named, stored

if TYPE_CHECKING:
    from somewhere import Unknown

UserId = NewType("UserId", int)


T = TypeVar("T")


class Shade(Enum):
    RED = "red"


class Address(TypedDict):
    street: str


def handler(function: Callable[..., Any], **options: Any) -> Any:
    """Return the function as a handler named f."""
    return Handlers(**options).handler("f")(function)


def call(function: Callable[..., Any], body: Any) -> Any:
    """Return the function's result for a job with this body."""
    there: Handler[..., ..., Any] = handler(function)
    args, kwargs = there.arguments(named("f", body))
    return there(*args, **kwargs)


def plain(user_id: int, lang: str = "en") -> Any:
    return user_id, lang


def with_job(job: Job, user_id: int, lang: str = "en") -> Any:
    return job.id[:2], user_id, lang


def job_amidst(a: int, job: Delivery, /, b: int = 2) -> Any:
    return a, job.id[:2], b


def job_last(a: int, *, job: Job | None = None) -> Any:
    return a, job.id[:2] if job else None


def unnamed(job, user_id):  # type: ignore[no-untyped-def]
    return job.id[:2], user_id


def typed_job(job: str) -> Any:
    return job


def only(a: int, b: int = 2, c: int = 3, /) -> Any:
    return a, b, c


def rest(a: int, *more: int, flag: bool = False) -> Any:
    return a, more, flag


def rest_and_job(a: int, job: Job, *more: int) -> Any:
    return a, job.id[:2], more


def named_only(a: int, *, b: int) -> Any:
    return a, b


def open_ended(a: int, **more: str) -> Any:
    return a, more


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@pytest.mark.parametrize(
    "function, body, result",
    [
        (plain, {"user_id": 7}, (7, "en")),
        (plain, {"lang": "de", "user_id": 7}, (7, "de")),
        (plain, [7], (7, "en")),
        (plain, [7, "de"], (7, "de")),
        (with_job, {"user_id": 7}, ("D-", 7, "en")),
        (with_job, [7, "de"], ("D-", 7, "de")),
        (job_amidst, {"a": 1}, (1, "D-", 2)),
        (job_amidst, [1, 5], (1, "D-", 5)),
        (job_last, [1], (1, "D-")),
        (unnamed, {"user_id": None}, ("D-", None)),
        (typed_job, {"job": "baker"}, "baker"),
        (only, {"c": 9, "a": 1}, (1, 2, 9)),
        (only, {"a": 1}, (1, 2, 3)),
        (only, [1, 5], (1, 5, 3)),
        (rest, [1, 2, 3], (1, (2, 3), False)),
        (rest, [1], (1, (), False)),
        (rest, {"a": 1, "flag": True}, (1, (), True)),
        (rest_and_job, [1, 2, 3], (1, "D-", (2, 3))),
        (rest_and_job, [1], (1, "D-", ())),
        (named_only, {"a": 1, "b": 2}, (1, 2)),
        (open_ended, {"a": 1, "b": "x", "c": "y"}, (1, {"b": "x", "c": "y"})),
        (anything, [1, {}], ((1, {}), {})),
        (anything, {"self": 1, "": 2}, ((), {"self": 1, "": 2})),
    ],
)
def test_fitting_bodies(function: Callable[..., Any], body: Any, result: Any) -> None:
    """A JSON object gives arguments by name, an array by position; the job is added if wanted."""
    assert call(function, body) == result


@pytest.mark.parametrize(
    "function, body, reason",
    [
        (plain, {"user_id": "x"}, "user_id='x': must be int"),
        (plain, ["x"], "user_id='x': must be int"),
        (plain, {"user_id": True}, "user_id=True: must be int"),
        (plain, {"user_id": 1.0}, "user_id=1.0: must be int"),
        (plain, {"user_id": 1, "lang": None}, "lang=None: must be str"),
        (plain, {"user_id": [1, 2]}, "user_id=[...]: must be int"),
        (plain, {"user_id": {}}, "user_id={}: must be int"),
        (plain, {}, "user_id: missing"),
        (plain, [], "user_id: missing"),
        (plain, {"user_id": 1, "x": 2}, "x=2: unexpected"),
        (plain, [1, "a", 3], "body: 3 positional arguments, at most 2"),
        (plain, 5, "body=5: neither an object nor an array"),
        (plain, None, "body=None: neither an object nor an array"),
        (with_job, {"user_id": 7, "job": 1}, "job=1: unexpected"),
        (with_job, [7, "de", 1], "body: 3 positional arguments, at most 2"),
        (rest, [1, 2, "x"], "more[1]='x': must be int"),
        (rest, {"a": 1, "more": [2]}, "more=[...]: unexpected"),
        (named_only, [1], "b: missing"),
        (named_only, [1, 2], "body: 2 positional arguments, at most 1"),
        (open_ended, {"a": 1, "b": 2}, "b=2: must be str"),
        (plain, {"user_id": "x" * 500}, f"user_id='{'x' * 56}...: must be int"),
        (plain, {"user_id": 1, "y" * 500: 5}, f"{'y' * 57}...=5: unexpected"),
        (plain, {"user_id": 1, "a\nb": 5}, r"a\nb=5: unexpected"),
    ],
)
def test_unfit_bodies(function: Callable[..., Any], body: Any, reason: str) -> None:
    """The reason has parameter and value, and is short."""
    with pytest.raises(Unfit) as caught:
        call(function, body)
    assert str(caught.value) == caught.value.reason == f"arguments don't fit f: {reason}"


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"1;c=json;h.handler=f\n{", "Expecting property name"),
        (b"1;c=json;h.handler=f\n", "Expecting value"),
        (b"1;c=json;h.handler=f\n\xff", "'utf-8' codec can't decode"),
        (b"1;c=json;h.handler=f\n" + b"[" * 200_000, "while decoding a JSON array"),
        (b"1;c=json;h.handler=f\n" + b"1" * 5000, "Exceeds the limit"),
        (b"1;h.handler=f\nhello", "Expecting value"),
        (b"1;c=x-pack;h.handler=f\n{}", "unknown codec 'x-pack'"),
        (b"1;h.handler=f", "Expecting value"),
    ],
)
def test_undecodable_bodies(data: bytes, reason: str) -> None:
    """A body that is not JSON or has an unknown codec is unfit, with a reason."""
    with pytest.raises(Unfit, match=r"^body can't be decoded: ") as caught:
        handler(plain).arguments(stored(data))
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 200


@pytest.mark.parametrize(
    "head", [b"1", b"1;l=5000", b"1;l=x", b"1;c=json", b"1;c=json;h.a=b", b"1;h.a=c=json"]
)
def test_the_codec_may_be_left_out(head: bytes) -> None:
    """Bytes that are JSON are parsed, as a named job can have nothing else."""
    job = stored(head + b';h.handler=f\n{"user_id": 7}')
    assert handler(plain).arguments(job) == ((), {"user_id": 7})


ANNOTATIONS: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [0, -5, 10**30], [True, 1.5, "1", None]),
    (float, [0.5, 1], [True, "1", None]),
    (bool, [True], [0, None]),
    (str, ["", "ä"], [1, None]),
    (None, [None], [0, ""]),
    (list, [[], [1]], [{}, "a"]),
    (dict, [{}, {"a": 1}], [[]]),
    (list[int], [[], ["unchecked"]], [{}, 1]),
    (dict[str, int], [{}], [[]]),
    (Optional[int], [None, 1], ["1", True]),
    (int | None, [None, 1], ["1"]),
    (Union[str, list[str]], ["a", []], [1]),
    (Literal["a", "b"], ["a"], ["c", 1, None, [1], {}]),
    (Literal[1, None], [1, None], [True, 1.0, "1"]),
    (Literal["a"] | int, ["a", 5], ["b", True]),
    (UserId, [5], ["5", True]),
    (Annotated[int, "cents"], [5], ["5"]),
    (Annotated[int | None, "cents"], [5, None], ["5"]),
    (Any, [None, 1, {}], []),
    (object, [None, 1], []),
    (Address, [{"street": "a"}, 5], []),
    (Mapping[str, int], [{}, 5], []),
    (int | Address, [1, {}, "unchecked"], []),
    (int | list[int] | None, [1, ["unchecked"], None], ["1", {}]),
    (T, [1, None], []),
    (Literal[Shade.RED], ["red", 5], []),
    ("Unknown", [1, "unchecked"], []),
    ("int", [1], ["1"]),
]


@pytest.mark.parametrize("annotation, good, bad", ANNOTATIONS)
def test_annotations(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    """JSON types are checked exactly; other annotations are ignored."""

    def function(value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__["value"] = annotation
    for value in good:
        assert call(function, [value]) == value
    for value in bad:
        with pytest.raises(Unfit, match=r"value=.*: must be "):
            call(function, [value])


def test_a_default_of_none_allows_none() -> None:
    """A default of None allows None."""

    def function(value: int = None) -> Any:  # type: ignore[assignment]
        return value

    assert call(function, [None]) is None
    with pytest.raises(Unfit):
        call(function, ["1"])


def test_annotations_that_are_defined_later() -> None:
    """An annotation may name something defined later in the module."""
    source = """from __future__ import annotations
def function(value: Later, other: Never, third: int): return value
"""
    module: dict[str, Any] = {}
    exec(source, module)
    there = handler(module["function"])
    module["Later"] = int
    assert there.arguments(named("f", [1, 2, 3]))[1] == {"value": 1, "other": 2, "third": 3}
    for body in (["x", 2, 3], [1, 2, "x"]):
        with pytest.raises(Unfit, match="'x': must be int"):
            there.arguments(named("f", body))


def test_unresolvable_hints_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Unresolvable annotations are logged once at DEBUG with the first job, and not checked."""

    def function(value: Unknown) -> None: ...

    with caplog.at_level(logging.DEBUG, "penstock.worker"):
        there = handler(function)
        for _ in range(3):
            there.arguments(named("f", ["x"]))
    assert [r.getMessage() for r in caplog.records] == [
        f"{__name__}.{function.__qualname__}: 'value' is not checked: name 'Unknown' is not defined"
    ]


class Counter:
    """A callable object."""

    def __call__(self, n: int) -> int:
        return n

    def method(self, n: int) -> int:
        return n


class Maker:
    """A callable class."""

    def __init__(self, n: int) -> None:
        self.n = n


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A typical decorator."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(plain, lang="de"),
        functools.partial(logged(plain)),
        logged(logged(plain)),
        logged(functools.partial(plain)),
        Counter(),
        Counter().method,
        functools.partial(Counter()),
        Maker,
        lambda n: n,
    ],
)
def test_annotations_of_wrapped_functions(function: Callable[..., Any]) -> None:
    """The annotations of the wrapped function count."""
    there = handler(function)
    assert there.arguments(named("f", [1]))[1].popitem()[1] == 1
    if not inspect.isfunction(function) or function.__name__ != "<lambda>":
        with pytest.raises(Unfit, match="'x': must be int"):
            there.arguments(named("f", ["x"]))


def test_a_partial_that_gave_the_first() -> None:
    """Arguments bound by a partial are not taken from the job."""
    assert call(functools.partial(plain, 7), {"lang": "de"}) == (7, "de")
    with pytest.raises(Unfit, match="user_id=1: unexpected"):
        call(functools.partial(plain, 7), {"user_id": 1})


def test_two_parameters_for_the_job() -> None:
    """Two parameters for the job are refused."""

    def function(job: Job, other: Job) -> None: ...

    with pytest.raises(BadArgument, match="receives the job, not two"):
        handler(function)


def test_a_function_without_a_signature() -> None:
    """A function without a signature can't be registered."""
    with pytest.raises(BadArgument, match="has no signature"):
        handler(type)


@pytest.mark.parametrize(
    "function, args, kwargs, body",
    [
        (plain, (7,), {}, {"user_id": 7}),
        (plain, (7,), {"lang": "de"}, {"user_id": 7, "lang": "de"}),
        (with_job, (7, "de"), {}, {"user_id": 7, "lang": "de"}),
        (job_amidst, (1, 2), {}, {"a": 1, "b": 2}),
        (job_last, (1,), {}, {"a": 1}),
        (only, (1, 5), {}, {"a": 1, "b": 5}),
        (rest, (1,), {"flag": True}, {"a": 1, "flag": True}),
        (rest, (1, 2, 3), {}, [1, 2, 3]),
        (rest_and_job, (1, 2, 3), {}, [1, 2, 3]),
        (open_ended, (1,), {"b": "x"}, {"a": 1, "b": "x"}),
        (anything, (), {}, {}),
        (anything, (1, (2, 3)), {}, [1, (2, 3)]),
    ],
)
def test_jobs_of_a_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], body: Any
) -> None:
    """The body for given arguments is a JSON object if possible."""
    there = handler(function)
    assert there.job(*args, **kwargs).body == body
    assert there.check().encoded(args, kwargs) == encode_body(body)[0]
    there.arguments(named("f", there.job(*args, **kwargs).body))


@pytest.mark.parametrize(
    "function, args, kwargs, argument, reason",
    [
        (plain, ("x",), {}, "user_id", "must be int"),
        (plain, (True,), {}, "user_id", "must be int"),
        (
            plain,
            (),
            {},
            "arguments",
            "'user_id'; the handler takes (user_id, lang='en')",
        ),
        (plain, (1, "a", 2), {}, "arguments", "too many positional arguments"),
        (plain, (1,), {"x": 2}, "arguments", "got an unexpected keyword argument 'x'"),
        (with_job, (1,), {"job": None}, "arguments", "got an unexpected keyword argument 'job'"),
        (rest, (1, 2), {"flag": True}, "arguments", "JSON has no form for these"),
        (rest, (1, "x"), {}, "more[0]", "must be int"),
        (anything, (1,), {"a": 2}, "arguments", "JSON has no form for these"),
        (anything, ({1, 2},), {}, "body", "can't be written as JSON"),
        (anything, (float("nan"),), {}, "body", "can't be written as JSON"),
    ],
)
def test_jobs_that_would_not_fit(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argument: str,
    reason: str,
) -> None:
    """Wrong arguments raise at the producer before anything is written."""
    with pytest.raises(BadArgument) as caught:
        handler(function).job(*args, **kwargs)
    assert type(caught.value) is BadArgument
    assert caught.value.argument == argument
    assert reason in str(caught.value)


def test_a_wrong_call_is_shown_with_the_name_of_the_function() -> None:
    """It reads as it was written."""
    text = r"^arguments=plain\(lang='de'\): missing a required argument: 'user_id'; the"
    with pytest.raises(BadArgument, match=text):
        handler(plain).job(lang="de")


def test_values_that_cannot_be_shown() -> None:
    """For a value that can't be shown the producer's error has its type."""

    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in (Shy(), 10**5000):
        with pytest.raises(BadArgument, match=rf"\(1, 2, <{type(value).__name__}>\)"):
            handler(plain).job(1, 2, value)


def test_a_name_that_means_two_things() -> None:
    """A positional-only parameter and an extra keyword of the same name are refused together."""

    def function(a: int, /, **more: int) -> None: ...

    with pytest.raises(BadArgument, match="JSON has no form for these"):
        handler(function).job(1, a=2)


def test_conversions() -> None:
    """Types that JSON lacks are converted in both directions, at any depth."""

    def convert(annotation: Any) -> Conversion | None:
        if annotation is complex:
            return Conversion(complex, str)
        return None

    def function(c: complex, n: int, *more: complex, **others: complex) -> Any:
        return c, n, more, others

    there = handler(function, convert=convert)
    assert there.job(1j, 5, n2=2j).body == {"c": "1j", "n": 5, "n2": "2j"}
    assert there.job(1j, 5, 2j).body == ["1j", 5, "2j"]
    for args, kwargs in (((1j, 5), {"n2": 2j}), ((1j, 5, 2j), {})):
        bound, by_name = there.arguments(named("f", there.job(*args, **kwargs).body))
        assert function(*bound, **by_name) == function(*args, **kwargs)
    with pytest.raises(Unfit, match=r"c='x': complex\(\) arg is a malformed string"):
        there.arguments(named("f", ["x", 5]))
    with pytest.raises(Unfit, match=r"more\[0\]='x'"):
        there.arguments(named("f", ["1j", 5, "x"]))


def test_a_converter_that_fails() -> None:
    """An error of a converter is the reason of an unfit job, or raised at the producer."""

    def refuse(value: Any) -> Any:
        raise KeyError(value)

    def function(c: complex) -> None: ...

    there = handler(function, convert=lambda _: Conversion(refuse, refuse))
    with pytest.raises(Unfit, match="c=1: 1"):
        there.arguments(named("f", [1]))
    with pytest.raises(BadArgument, match="can't be written as JSON"):
        there.job(1j)


SIGNATURES = [
    plain, with_job, job_amidst, job_last, unnamed, typed_job, only, rest, rest_and_job, named_only,
    open_ended, anything,
]  # fmt: skip
NAMED = {function: handler(function) for function in SIGNATURES}
NAMES = st.sampled_from(["a", "b", "c", "user_id", "lang", "job", "more", "flag"]) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)
BODIES = VALUES | st.lists(VALUES, max_size=4) | st.dictionaries(NAMES, VALUES, max_size=4)
HEADS = st.sampled_from([b"1", b"1;c=json", b"1;c=x", b"1;t=9;c=json", b"1;t=;h.%=%"]) | st.binary()


def refused(function: Callable[..., Any], data: bytes) -> str:
    """Return the reason why a record is unfit, or an empty text if the function can be called."""
    try:
        args, kwargs = NAMED[function].arguments(stored(data))
    except Unfit as error:
        error.reason.encode()  # it can be sent
        return error.reason
    function(*args, **kwargs)
    return ""


@pytest.mark.slow
@given(function=st.sampled_from(SIGNATURES), body=BODIES)
def test_any_body_fits_or_is_unfit(function: Callable[..., Any], body: Any) -> None:
    """Any body is refused, or the function can be called with its arguments."""
    data = b"1;c=json;h.handler=f\n" + json.dumps(body).encode()
    assert len(refused(function, data)) < 400


@given(
    function=st.sampled_from(SIGNATURES), head=HEADS, raw=st.binary() | st.text().map(str.encode)
)
def test_any_bytes_fit_or_are_unfit(function: Callable[..., Any], head: bytes, raw: bytes) -> None:
    """Any record is refused, or the function can be called with its arguments."""
    refused(function, head + b"\n" + raw)


@given(
    function=st.sampled_from(SIGNATURES),
    args=st.lists(VALUES, max_size=4),
    kwargs=st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_a_job_is_refused_or_fits(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    """A job that a producer may enqueue can be run by a worker."""
    try:
        body = NAMED[function].job(*args, **kwargs).body
    except BadArgument:
        with pytest.raises(BadArgument):
            NAMED[function].check().encoded(tuple(args), kwargs)
        return
    assert NAMED[function].check().encoded(tuple(args), kwargs) == encode_body(body)[0]
    given_args, given_kwargs = NAMED[function].arguments(named("f", body))
    function(*given_args, **given_kwargs)


def test_a_state_is_no_argument() -> None:
    """A job can't name a `State` parameter, also not among arguments of any name."""

    def handler(pool: State[int], **more: int) -> None: ...

    parameters = Parameters(handler, None, strict=True)
    with pytest.raises(BadArgument, match="pool=7: unexpected"):
        parameters.body((), {"pool": 7})
    with pytest.raises(Misfit, match="pool=7: unexpected"):
        parameters.bind({"pool": 7})
