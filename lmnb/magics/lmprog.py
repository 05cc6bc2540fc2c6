"""`%%lmprog`: a cell that is a prompt program. Reads the options, compiles the body, and runs it or defines it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand, output_can_be_silenced

from lmnb.errors import LmnbError
from lmnb.language import Defaults, Program, ProgramState, open_state
from lmnb.language.expressions import Expr
from lmnb.magics import body, options
from lmnb.magics.body import CellText
from lmnb.magics.control import Lmnb
from lmnb.magics.runner import run_in_front
from lmnb.magics.session import Session
from lmnb.widgets import RunView

MAGIC = "%%lmprog"


def option_parser() -> options.LineParser:
    """The options of `%%lmprog`; `HELP` below describes them."""
    parser = options.LineParser(MAGIC)
    parser.add_argument("-m", "--model")
    parser.add_argument("-t", "--temperature", type=options.non_negative)
    parser.add_argument("--max-tokens", type=options.positive)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--logprobs", type=options.positive, metavar="N")
    parser.add_argument("--from", dest="continue_from", metavar="STATE")
    parser.add_argument("-o", "--out", type=options.variable, metavar="VAR")
    parser.add_argument("--bg", action="store_true")
    parser.add_argument("--view", choices=options.VIEWS)
    return parser


@magics_class
class LmprogMagics(Magics):  # type: ignore[misc]  # IPython's class is untyped
    """The cell magic."""

    def __init__(self, shell: Any, session: Session, control: Lmnb) -> None:
        super().__init__(shell)
        self.session = session
        self.control = control  # holds what `%config Lmnb` sets

    @output_can_be_silenced  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]  # the head may hold {}; the options are expanded below
    @cell_magic  # type: ignore[untyped-decorator]
    def lmprog(self, line: str, cell: str) -> Any:
        """Run a prompt program, or define one.

        ::

            %%lmprog [NAME[(PARAMS)]] [options]
            BODY

        BODY is Python. In it `s` is the program's state: add text and generations to it, and read what
        was generated. It is never formatted: braces and $ stay as they are.

        Without NAME the body runs now, with a fresh `s` and with your variables; what it assigns is yours
        afterwards, and the state is left in `s`. With NAME it defines a program that other cells call:

            %%lmprog
            s += user("Name a city in Japan.") + assistant(gen("city", max_tokens=8))

            %%lmprog judge(essay, n=3) -t 0.2
            s += user("Judge this: " + essay)
            s += assistant(gen("verdict"))
            return s["verdict"]

            judge("Cats sleep a lot.")["verdict"]

        Options ($var and {expr} in them are expanded):
          -m, --model MODEL      a loaded model's name, a variable that holds a backend, or a path
          -t, --temperature T    0 is greedy
          --max-tokens N         limit of each generation that sets none
          --seed N               same seed, same text
          --logprobs N           each token's probability with the N likeliest others, and all methods of select,
                                 for the view and for get_meta_info
          --from STATE           go on from an earlier state (a variable), as in a conversation
          -o, --out VAR          leave the state in VAR instead of `s`
          --bg                   return at once; `%lmnb cancel` stops it, `s.sync()` waits for it
          --view VIEW            widget, html, text or off

        The kernel's interrupt and the view's Cancel stop a run at once; its partial text stays in the state.
        """
        __tracebackhide__ = True
        name, params, rest = options.split_head(MAGIC, line)
        namespace = self.shell.user_ns
        chosen = option_parser().parse(options.split(MAGIC, options.expand(rest, namespace)))
        if not cell.strip():
            raise UsageError(f"{MAGIC}: the cell has no body. Write the program below the first line.")
        text = self.session.cell_text(f"{MAGIC} {line}".rstrip(), cell)
        tree = body.parse(text, self.shell.transform_cell)
        if name is not None:
            self._define(name, body.compile_program(text, tree, name, params, namespace), chosen)
            return None
        return self._run(text, body.compile_cell(text, tree, namespace), chosen)

    def _define(self, name: str, function: Callable[..., Any], chosen: Namespace) -> None:
        for option in ("continue_from", "out", "bg", "view"):
            if getattr(chosen, option):
                word = {"continue_from": "from"}.get(option, option)
                raise UsageError(f"{MAGIC}: --{word} is for cells that run; this one defines the program {name!r}.")
        backend = None
        if chosen.model is not None:
            self.session.backend(chosen.model)  # it is there, or the user learns now that it is not
            backend = partial(self.session.backend, chosen.model)  # by name: another may have taken its place by then
        defaults = Defaults().updated(_sampling(chosen))
        self.shell.push({name: Program(function, defaults=defaults, backend=backend)})

    def _run(self, text: CellText, function: Callable[[ProgramState], Any], chosen: Namespace) -> Any:
        __tracebackhide__ = True
        earlier = None if chosen.continue_from is None else self._earlier(chosen.continue_from)
        state = self._open(earlier, chosen)
        self.shell.push({chosen.out or body.STATE: state})
        keep = partial(self.session.names.keep, chosen.out or body.STATE)
        view = RunView(state.run, self.control.mode(chosen.view), keep=keep)
        if chosen.bg:
            self.session.background.start(state.run, view, partial(_execute, function, state))
            return None
        try:
            value = run_in_front(state.run, view, partial(_execute, function, state))
        except LmnbError as error:
            _add_place(error, text)
            raise
        return None if isinstance(value, Expr) else value  # `s.user("...")` says nothing that the view does not

    def _open(self, earlier: ProgramState | None, chosen: Namespace) -> ProgramState:
        """The state that the body gets. A conversation goes on with its model and settings, unless told otherwise."""
        if earlier is not None and chosen.model is None:
            backend, defaults = earlier.stream.backend, earlier.defaults
        else:
            backend, defaults = self.session.backend(chosen.model), Defaults()
        return open_state(
            backend,
            cell=str(self.session.cell_number),
            defaults=defaults.updated(_sampling(chosen)),
            continue_from=earlier,
            background_run=chosen.bg,
        )

    def _earlier(self, expression: str) -> ProgramState:
        """The state that `--from` names."""
        namespace = self.shell.user_ns
        try:
            value = eval(expression, namespace)  # the user's own words, as in the cell itself
        except Exception as error:
            near = options.suggest(expression, [n for n, v in namespace.items() if isinstance(v, ProgramState)])
            raise UsageError(f"{MAGIC}: --from {expression}: {error}.{near}") from None
        if not isinstance(value, ProgramState):
            kind = type(value).__name__
            raise UsageError(f"{MAGIC}: --from needs a program's state, and {expression!r} is of type {kind}.")
        return value


def _execute(function: Callable[[ProgramState], Any], state: ProgramState) -> Any:
    """The body. What it raises stops what it has started, and readers of the state learn why."""
    __tracebackhide__ = True
    try:
        return function(state)
    except BaseException as error:
        state.stop(error)
        raise


def _sampling(chosen: Namespace) -> dict[str, Any]:
    """Sampling defaults that the options set; None leaves one alone."""
    return {
        "temperature": chosen.temperature,
        "max_new_tokens": chosen.max_tokens,
        "seed": chosen.seed,
        "return_logprob": True if chosen.logprobs else None,
        "top_logprobs_num": chosen.logprobs,
        "return_text_in_logprobs": True if chosen.logprobs else None,
    }


def _add_place(error: LmnbError, text: CellText) -> None:
    """Let the error's short form say where in the cell it came from."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == text.filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is not None:
        source = text.source_line(line).strip()
        # BaseException.add_note is of Python 3.11
        error.__notes__ = [*getattr(error, "__notes__", ()), f"at {text.place(line)}: {source}"]
