"""Arguments of a handler: a body of JSON is bound to a function's parameters and checked.

An object holds arguments by name, an array by position. Names are always checked. So are values
with a plain annotation (`int`, `str`, `list`, `None`, `Literal`, and unions of these). A converter
handles other annotations; without one they are ignored.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Literal, NamedTuple, TypeAlias, Union

from penstock.core.jobs.job import Delivery, data_of, ops_of, record_of
from penstock.core.jobs.record import encode_body, encode_json
from penstock.core.values.caught import message_of
from penstock.core.values.checks import check_text
from penstock.errors import BadArgument, PenstockError
from penstock.worker.functions import hints
from penstock.worker.results import MAX_TEXT_BYTES
from penstock.worker.state_values import is_state, state_for
from penstock.worker.step_run import BaseSteps, steps_class

__all__ = ["Conversion", "Converter", "Misfit", "Parameters", "Unfit", "decoded"]

SHOWN_CHARACTERS = 60
"""Most characters of a value in an error message."""
_JSON = (bool, int, float, str, list, dict, type(None))
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_MISSING: Any = object()
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SCALARS: frozenset[type] = frozenset((str, int, float, bool, type(None)))
"""Types of values that come back from JSON as they were."""
_loads = json.JSONDecoder().decode


class Unfit(PenstockError):
    """A job's body does not fit its handler. The job becomes a dead letter without another attempt.

    Args:
        reason: the reason of the dead letter.
    """

    def __init__(self, reason: str) -> None:
        self.reason = check_text("reason", reason, limit=MAX_TEXT_BYTES)  # no lone surrogates
        super().__init__(self.reason)


class Misfit(BadArgument):
    """An argument does not fit its parameter. In a worker it becomes `Unfit`.

    Args:
        name: the name of the parameter or argument.
        reason: the reason why it does not fit.
        value: the argument, if there is one.
    """

    def __init__(self, name: str, reason: str, value: Any = _MISSING) -> None:
        super().__init__(name, value, reason)

    def __str__(self) -> str:
        given = "" if self.value is _MISSING else f"={shown(self.value)}"
        return f"{_cut(_printable(self.argument))}{given}: {self.reason}"


class Conversion(NamedTuple):
    """Functions that convert the values of one annotation.

    Attributes:
        load: converts JSON data into an argument; may raise any exception, whose text is shown.
        dump: converts an argument into JSON data.
    """

    load: Callable[[Any], Any]
    dump: Callable[[Any], Any]


Converter: TypeAlias = Callable[[Any], Conversion | None]
"""Returns the conversion for an annotation; None = its values stay as they are."""


def shown(value: Any) -> str:
    """Return a short text of a value for an error message."""
    if isinstance(value, (list, dict)) and value:
        return "[...]" if isinstance(value, list) else "{...}"
    try:
        return _cut(repr(value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value))
    except Exception:  # noqa: BLE001  # an int with too many digits, or a __repr__ that fails
        return f"<{type(value).__name__}>"


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text[:SHOWN_CHARACTERS])[1:-1]


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def decoded(job: Delivery) -> Any:
    """Return the decoded body of a job for a named handler. It is JSON if it names no codec.

    Raises:
        Unfit: it can't be decoded.
    """
    head, _, raw = data_of(job).partition(b"\n")
    try:
        if not head.endswith(b";c=json") and b";c=json;" not in head:
            codec = record_of(job).codec
            ops = ops_of(job)
            if codec and ops is not None and ops.codec is not None and ops.codec.name == codec:
                return job.body
            if codec:
                raise Unfit(f"body can't be decoded: unknown codec {shown(codec)}")
        return _loads(raw.decode())
    except (ValueError, RecursionError) as error:  # UndecodableBody too
        raise Unfit(f"body can't be decoded: {error}") from error


_Kind: TypeAlias = dict[Any, str]
"""The JSON values that an annotation allows, with their names; empty = any value.

A key is a type, or a pair of type and value: 1 and True are equal.
"""


def _check(kind: _Kind, name: str, value: Any) -> None:
    of_type = type(value)
    if not kind or of_type in kind or (of_type in _SCALARS and (of_type, value) in kind):
        return
    raise Misfit(name, f"must be {' or '.join(dict.fromkeys(kind.values()))}", value)


def _kind(annotation: Any, *, loose: bool = False) -> _Kind | None:
    """Return the values that need no converter; None = the annotation is not a JSON type.

    Args:
        annotation: a resolved annotation.
        loose: `list[X]` and `dict[K, V]` allow any list or dict, and `Annotated[X, ...]` is X.
    """
    while hasattr(annotation, "__supertype__"):  # NewType
        annotation = annotation.__supertype__
    if loose and hasattr(annotation, "__metadata__"):
        return _kind(annotation.__origin__, loose=True)
    if any(annotation is one for one in (Any, object, Parameter.empty)):
        return {}
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([_kind(part, loose=loose) for part in parts])
    if origin is Literal:
        fits = _SCALARS.issuperset(map(type, parts))
        return {(type(value), value): repr(value) for value in parts} if fits else None
    if annotation is None:
        annotation = type(None)
    elif loose and origin in (list, dict):
        annotation = origin
    if not isinstance(annotation, type) or annotation not in _JSON:
        return {} if isinstance(annotation, typing.TypeVar) else None
    name = "None" if annotation is type(None) else annotation.__name__
    allowed = (int, float) if annotation is float else (annotation,)
    return dict.fromkeys(allowed, name)


def _union(parts: list[_Kind | None]) -> _Kind | None:
    whole: _Kind = {}
    for part in parts:
        if not part:
            return part
        for key, name in part.items():
            whole.setdefault(key, name)
    return whole


def _is_job(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return any(_is_job(part) for part in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Delivery)


def _receiver(
    function: Callable[..., Any], signature: inspect.Signature, known: Mapping[str, Any]
) -> str | None:
    """Return the parameter for the job: it has that type, or that name and no JSON type.

    Raises:
        BadArgument: there are two.
    """
    found = None
    for name, parameter in signature.parameters.items():
        annotation = known.get(name, Parameter.empty)
        is_named = name == "job" and not _kind(annotation)
        if parameter.kind in _VARIABLE or not (is_named or _is_job(annotation)):
            continue
        if found is not None:
            raise BadArgument(
                "function", function, "must have one parameter that receives the job, not two"
            )
        found = name
    return found


def _steps_parameter(
    function: Callable[..., Any], signature: inspect.Signature, known: Mapping[str, Any]
) -> tuple[str | None, type[BaseSteps] | None]:
    """Return the name and the annotation of the parameter for the steps, if there is one.

    Raises:
        BadArgument: there are two, or it can't receive one value.
    """
    classes = {name: steps_class(known.get(name)) for name in signature.parameters}
    found = [name for name, steps in classes.items() if steps is not None]
    if not found:
        return None, None
    [name, *others] = found
    if others or signature.parameters[name].kind in _VARIABLE:
        raise BadArgument("function", function, "must have one parameter for its steps")
    return name, classes[name]


class Parameters:
    """The parameters of a function. They bind and check a body.

    Args:
        function: the handler.
        convert: returns conversions for annotations that are no JSON types.
        strict: as in `hints`.

    Attributes:
        job: the name of the parameter that receives the job, or None.
        steps: the name of the parameter that receives the steps, or None.
        steps_type: its annotation.

    Raises:
        BadArgument: the function can't be a handler.
        NameError: see `hints`.
    """

    def __init__(
        self, function: Callable[..., Any], convert: Converter | None, *, strict: bool = False
    ) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise BadArgument("function", function, f"has no signature: {error}") from None
        known = hints(function, strict=strict)
        self.job = _receiver(function, signature, known)
        self.steps, self.steps_type = _steps_parameter(function, signature, known)
        self._title = getattr(function, "__name__", "handler")
        every = list(signature.parameters.values())
        self._states = {n: known[n] for n in signature.parameters if is_state(known.get(n))}
        self._given = {*self._states, self.job, self.steps}
        """Parameters that are no arguments of the job."""
        own = [one for one in every if one.name not in self._given]
        self._signature = signature.replace(parameters=own)
        self._positional_only = [one.name for one in every if one.kind == Parameter.POSITIONAL_ONLY]
        self._positional = [one.name for one in every if one.kind in _POSITIONAL]
        self._own_positional = [one.name for one in own if one.kind in _POSITIONAL]
        self._var_positional = self._var_keyword = ""
        self._kinds: dict[str, _Kind] = {}
        self._loads: dict[str, Callable[[Any], Any]] = {}
        self._dumps: dict[str, Callable[[Any], Any]] = {}
        self._required: dict[str, None] = {}
        self._defaults: dict[str, Any] = {}  # of positional-only parameters
        for parameter in own:
            self._add(parameter, known.get(parameter.name, Parameter.empty), convert)
        self._named = frozenset(self._kinds) - {self._var_positional, self._var_keyword}
        self._scalars: dict[str, frozenset[type]] | None = None
        """Types of scalars that each parameter takes; None = some parameters are unusual."""
        if not (self._positional_only or self._var_positional or self._var_keyword or self._dumps):
            kinds = self._kinds.items()
            self._scalars = {name: _SCALARS & (kind.keys() or _SCALARS) for name, kind in kinds}

    def _add(self, parameter: Parameter, annotation: Any, convert: Converter | None) -> None:
        name = parameter.name
        if parameter.kind == Parameter.VAR_POSITIONAL:
            self._var_positional = name
        elif parameter.kind == Parameter.VAR_KEYWORD:
            self._var_keyword = name
        elif parameter.default is Parameter.empty:
            self._required[name] = None
        elif parameter.kind == Parameter.POSITIONAL_ONLY:
            self._defaults[name] = parameter.default
        kind = _kind(annotation)
        conversion = convert(annotation) if convert and kind is None else None
        if conversion is not None:
            self._loads[name], self._dumps[name] = conversion
            kind = {}
        elif kind is None:
            kind = _kind(annotation, loose=True) or {}
        if parameter.default is None and kind:
            kind |= {type(None): "None"}
        self._kinds[name] = kind

    def shown(self) -> str:
        """Return the parameters that are arguments, as in a definition without annotations."""
        own = self._signature.parameters.values()
        return ", ".join(str(one.replace(annotation=Parameter.empty)) for one in own)

    def lacks(self, other: Parameters) -> str:
        """Return why each body of another function does not fit this one; empty = one may."""
        unusual = (*self._positional_only, *other._positional_only)
        if unusual or self._var_positional or other._var_positional:
            return ""
        if not self._var_keyword and (extra := other._required.keys() - self._kinds.keys()):
            return f"does not take {', '.join(map(repr, sorted(extra)))}"
        if not other._var_keyword and (left := self._required.keys() - other._kinds.keys()):
            return f"needs {', '.join(map(repr, sorted(left)))}, which no job has"
        return ""

    def bind(
        self, body: Any, job: Any = None, steps: BaseSteps | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function.

        Args:
            body: the decoded body.
            job: the job, for the parameter that receives it.
            steps: those of the run, for their parameter.

        Raises:
            Misfit: an argument does not fit.
        """
        rest: list[Any] = []
        if type(body) is list:
            most = len(self._own_positional)
            body, rest = dict(zip(self._own_positional, body, strict=False)), body[most:]
            if rest and not self._var_positional:
                given = most + len(rest)
                raise Misfit("body", f"{given} positional arguments, at most {most}")
        elif type(body) is not dict:
            raise Misfit("body", "neither an object nor an array", body)
        bound = self._defaults | self._by_name(body)
        if self.job is not None:
            bound[self.job] = job
        if self.steps is not None:
            bound[self.steps] = steps
        if self._states:
            bound |= dict.fromkeys(self._states) if job is None else self.states(job.state)
        args = [bound.pop(name) for name in (self._positional if rest else self._positional_only)]
        args += [
            self._loaded(self._var_positional, f"{self._var_positional}[{i}]", one)
            for i, one in enumerate(rest)
        ]
        return tuple(args), bound

    def states(self, state: Any) -> dict[str, Any]:
        """Return the values of the `State` parameters.

        Raises:
            BadArgument: the worker's state has no value for one of them.
        """
        return {name: state_for(name, kind, state) for name, kind in self._states.items()}

    def _by_name(self, given: dict[str, Any]) -> dict[str, Any]:
        bound: dict[str, Any] = {}
        for name, value in given.items():
            parameter = name if name in self._named else self._var_keyword
            if not parameter or name in self._given:
                raise Misfit(name, "unexpected", value)
            bound[name] = self._loaded(parameter, name, value)
        for name in self._required:
            if name not in given:
                raise Misfit(name, "missing")
        return bound

    def _loaded(self, parameter: str, name: str, value: Any) -> Any:
        _check(self._kinds[parameter], name, value)
        load = self._loads.get(parameter)
        if load is None:
            return value
        try:
            return load(value)
        except Exception as error:  # the user's validator
            raise Misfit(name, message_of(error)[:200] or type(error).__name__, value) from error

    def body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the body with these arguments.

        It is an object, or an array if there are more positional arguments than parameters.

        Raises:
            BadArgument: they don't fit, or JSON can't express them.
        """
        found = self._fitting(args, kwargs)
        return self._bound(args, kwargs) if found is None else found

    def body_without_first(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Return the body with arguments behind the first one, and the parameter of that.

        Raises:
            BadArgument: the function takes no such arguments, or JSON can't express them.
        """
        if not self._own_positional:
            reason = f"{self._title} takes no argument for the value of the job before"
            raise BadArgument("jobs", self._title, reason)
        first = self._own_positional[0]
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError as error:
            call = _ShownCall(self._title, args, dict(kwargs))
            raise BadArgument("arguments", call, self._explain(error)) from None
        if bound.arguments.get(self._var_positional):
            reason = f"{self._title} has the value before a list of arguments: pass them by name"
            raise BadArgument("arguments", _ShownCall(self._title, args, dict(kwargs)), reason)
        del bound.arguments[first]
        body = self._body_of(bound)
        data, _ = encode_body(body)
        try:
            for name, value in _loads(data.decode()).items():
                self._loaded(name if name in self._named else self._var_keyword, name, value)
        except Misfit as error:
            raise BadArgument(error.argument, error.value, error.reason) from error.__cause__
        return body, first

    def encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the body with these arguments as JSON. Raises: as `body`."""
        found = self._fitting(args, kwargs)
        if found is None:
            return encode_body(self._bound(args, kwargs))[0]
        return encode_json(found)

    def _fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by name if all are scalars that fit; these JSON leaves as they are.

        None = they must be bound and checked one by one.
        """
        kinds = self._scalars
        if kinds is None:
            return None
        given = dict(zip(self._own_positional, args, strict=False))
        if kwargs:
            given.update(kwargs)
        if len(given) != len(args) + len(kwargs) or not given.keys() >= self._required.keys():
            return None
        for name, value in given.items():
            if type(value) not in kinds.get(name, ()):
                return None
        return given

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Bind and check arguments of any kind; return the body. Raises: as `body`."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            call = _ShownCall(self._title, args, kwargs)
            raise BadArgument("arguments", call, self._explain(error)) from None
        body = self._body_of(bound)
        data, _ = encode_body(body)
        try:
            self.bind(_loads(data.decode()))  # as a worker does
        except Misfit as error:  # a caller sees the class that it knows
            raise BadArgument(error.argument, error.value, error.reason) from error.__cause__
        return body

    def _explain(self, error: TypeError) -> str:
        """Say how to call the handler."""
        bare = inspect.Parameter.empty
        takes = ", ".join(
            str(one.replace(annotation=bare)) for one in self._signature.parameters.values()
        )
        return f"{error}; the handler takes ({takes})"

    def _body_of(self, bound: inspect.BoundArguments) -> Any:
        given = dict(bound.arguments)
        rest = given.pop(self._var_positional, ())
        more: Mapping[str, Any] = given.pop(self._var_keyword, {})
        clash = given.keys() & more
        if clash or self.job in more or (rest and given.keys() | more > set(self._own_positional)):
            reason = "JSON has no form for these positional and named arguments together"
            raise BadArgument(
                "arguments", _ShownCall(self._title, bound.args, bound.kwargs), reason
            )
        for name in given.keys() & self._dumps.keys():
            given[name] = _dumped(self._dumps[name], name, given[name])
        dump = self._dumps.get(self._var_keyword)
        given |= more if dump is None else {n: _dumped(dump, n, v) for n, v in more.items()}
        if not rest:
            return given
        dump = self._dumps.get(self._var_positional)
        if dump is not None:
            rest = [_dumped(dump, self._var_positional, value) for value in rest]
        return [*(given[name] for name in self._own_positional), *rest]


def _dumped(dump: Callable[[Any], Any], name: str, value: Any) -> Any:
    try:
        return dump(value)
    except Exception as error:  # the user's serializer
        raise BadArgument(name, value, f"can't be written as JSON: {error}") from error


class _ShownCall(NamedTuple):
    """A call of a handler, for an error message."""

    title: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        named = [f"{name}={shown(value)}" for name, value in self.kwargs.items()]
        return f"{self.title}({', '.join([*map(shown, self.args), *named])})"
