//! What a cell may be written in.

use talaria_broker::outcome::Status;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    odd_beginnings_run,
    files_run_in_their_own_encoding,
    sources_with_nothing_to_do_succeed,
    future_imports_hold_for_their_cell,
    await_works_at_the_top,
    a_main_guard_runs,
    what_cannot_be_parsed_is_an_ordinary_error,
    four_mebibytes_of_source_run,
    a_cell_of_many_statements_keeps_its_line_numbers,
    the_source_of_definitions_is_found,
    dataclasses_and_doctest_work,
    the_last_expression_is_not_printed,
];

/// Those that need nothing of an earlier cell.
pub(crate) const CASES_WITHOUT_STATE: &[Case] = cases![
    odd_beginnings_run,
    files_run_in_their_own_encoding,
    sources_with_nothing_to_do_succeed,
    a_main_guard_runs,
    four_mebibytes_of_source_run,
    a_cell_of_many_statements_keeps_its_line_numbers,
];

fn odd_beginnings_run(rig: &Rig) {
    let session = rig.session();
    for (what, source) in [
        ("BOM", "\u{feff}print('ok')"),
        ("BOM and CRLF", "\u{feff}x = 1\r\nif x:\r\n    print('ok')\r\n"),
        ("CR", "x = 1\rprint('ok')\r"),
        ("tabs", "if True:\n\tprint('ok')\n"),
        ("form feed", "\x0cx = 1\n\x0cprint('ok')"),
        ("coding comment", "# -*- coding: latin-1 -*-\nprint('ok')"),
        ("unknown coding in text", "# coding: klingon\nprint('ok')"),
        ("shebang", "#!/usr/bin/env python3\nprint('ok')"),
        ("no line end", "print('ok')"),
        ("blank lines", "\n\n\n  \nprint('ok')\n\n"),
        ("comment at the end", "print('ok')  # done"),
        ("semicolons", "x = 1; print('ok');"),
        ("docstring", "'''What it does.'''\nprint('ok' if __doc__ != 5 else 0)"),
        ("continued line", "print( \\\n'ok')"),
        ("string with CRLF", "print(len('''a\r\nb''') == 3 and 'ok')"),
    ] {
        let outcome = session.cell(source);
        assert_eq!(outcome.output, "ok\n", "{what}: {outcome:#?}");
    }
    // Text is text: a coding comment cannot change what was said.
    assert_eq!(
        session.ok("# coding: latin-1\nprint('\u{fc}', len('\u{fc}'))"),
        "\u{fc} 1\n"
    );
}

fn files_run_in_their_own_encoding(rig: &Rig) {
    let session = rig.session();
    let outcome = session.file(b"# coding: latin-1\nprint('\xfc')\n1/0  # \xe4".as_slice());
    assert!(outcome.output.starts_with("\u{fc}\n"), "{outcome:#?}");
    assert!(outcome.output.contains("1/0  # \u{e4}"), "{outcome:#?}");
    assert_eq!(
        session.file(b"\xef\xbb\xbfprint('\xc3\xbc')".as_slice()).output,
        "\u{fc}\n"
    );
    let outcome = session.file(b"print('\xfc')".as_slice());
    assert_eq!((outcome.status, outcome.exit_code), (Status::Error, Some(1)));
    assert!(
        outcome.error.unwrap().starts_with("SyntaxError: "),
        "{}",
        outcome.output
    );
    assert_eq!(session.ok("print(1)"), "1\n");
}

fn sources_with_nothing_to_do_succeed(rig: &Rig) {
    let session = rig.session();
    for source in [
        "# only a comment",
        "#",
        "'a docstring'",
        "pass",
        "\u{feff}# x\r\n# y\r\n",
        "...",
        "None",
    ] {
        let outcome = session.cell(source);
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Success, Some(0)),
            "{source}: {outcome:#?}"
        );
        assert_eq!((outcome.output.as_str(), outcome.stdout_bytes_total), ("", 0));
    }
    for source in ["", "  \n\t\n", "\u{feff}", "\u{feff}\n"] {
        let outcome = session.cell(source);
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, None),
            "{source:?}: {outcome:#?}"
        );
        assert_eq!(outcome.kernel, None);
        assert!(outcome.error.unwrap().contains("no code"), "{source:?}");
    }
}

fn future_imports_hold_for_their_cell(rig: &Rig) {
    let session = rig.session();
    let source = "\"\"\"Doc.\"\"\"\nfrom __future__ import annotations\ndef f(x: Nowhere) -> None: pass\nprint(f.__annotations__['x'])";
    assert_eq!(session.ok(source), "Nowhere\n");
    assert_eq!(
        session.ok("from __future__ import annotations\n(lambda: print('last'))()"),
        "last\n"
    );
    // A cell without it has annotations that are evaluated, at once or when they are asked for.
    let outcome = session.cell("def g(x: Nowhere): pass\ng.__annotations__");
    assert!(
        outcome.error.as_deref().unwrap().starts_with("NameError"),
        "{outcome:#?}"
    );
}

fn await_works_at_the_top(rig: &Rig) {
    let session = rig.session();
    session.ok("import asyncio\nasync def double(x):\n    await asyncio.sleep(0)\n    return 2 * x");
    assert_eq!(session.ok("y = await double(4)\nprint(y)"), "8\n");
    assert_eq!(session.ok("print(await double(y))"), "16\n");
    assert_eq!(
        session.ok("async def numbers():\n    yield 1\n    yield 2\nasync for n in numbers():\n    print(n)"),
        "1\n2\n"
    );
    assert_eq!(
        session.ok("print([n async for n in numbers()], sum(await asyncio.gather(double(1), double(2))))"),
        "[1, 2] 6\n"
    );
    let outcome = session.cell("await double(None)");
    assert!(
        outcome.error.as_deref().unwrap().starts_with("TypeError"),
        "{outcome:#?}"
    );
    assert_eq!(session.ok("print(await double(1))"), "2\n");
    let outcome = session.cell("import sys\nasync def leave():\n    sys.exit(4)\nawait leave()");
    assert_eq!(outcome.exit_code, Some(4), "{outcome:#?}");
    assert_eq!(session.ok("print(await double(1))"), "2\n");
}

fn a_main_guard_runs(rig: &Rig) {
    let source = "import sys\ndef main():\n    print('main', __file__.endswith('.py'), sys.argv[0] == __file__)\nif __name__ == '__main__':\n    main()";
    assert_eq!(rig.session().ok(source), "main True True\n");
}

fn what_cannot_be_parsed_is_an_ordinary_error(rig: &Rig) {
    let session = rig.session();
    for (source, error) in [
        ("print(", "SyntaxError"),
        ("x = = 1", "SyntaxError"),
        ("  print(1)", "IndentationError"),
        ("if True:\n\tx = 1\n        y = 2", "TabError"),
        ("print('a\0b')", ""),
        ("return 5", "SyntaxError"),
        ("x = '\\N{no such name}'", "SyntaxError"),
        ("await = 3", "SyntaxError"),
        ("from __future__ import braces", "SyntaxError"),
    ] {
        let outcome = session.cell(source);
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, Some(1)),
            "{source:?}: {outcome:#?}"
        );
        assert!(
            outcome.error.as_deref().unwrap().starts_with(error),
            "{source:?}: {outcome:#?}"
        );
        assert!(
            outcome.output.starts_with("--- stderr ---\n"),
            "{source:?}: {outcome:#?}"
        );
        assert!(!outcome.kernel.unwrap().state_lost);
    }
    let nested = format!("{}{}", "(".repeat(5000), ")".repeat(5000));
    let outcome = session.cell(nested);
    assert_eq!(outcome.status, Status::Error);
    let outcome = session.cell("x = 1\ny = (2 +\nz = 3");
    assert!(outcome.output.contains("cell_"), "{outcome:#?}");
    assert!(outcome.output.contains("SyntaxError"), "{outcome:#?}");
    assert_eq!(session.ok("print(1)"), "1\n");
}

fn four_mebibytes_of_source_run(rig: &Rig) {
    let session = rig.session();
    let text = "x".repeat(4 << 20);
    assert_eq!(session.ok(&format!("data = '{text}'\nprint(len(data))")), "4194304\n");
    let lines = "y = 'a line of a long script'\n".repeat(20_000);
    assert_eq!(session.ok(&format!("{lines}print(y)")), "a line of a long script\n");
}

fn a_cell_of_many_statements_keeps_its_line_numbers(rig: &Rig) {
    let session = rig.session();
    for line_end in ["\n", "\r\n", "\r"] {
        let source = format!("{}boom = 1 / 0{line_end}", format!("x = 1{line_end}").repeat(99));
        let outcome = session.cell(source);
        assert!(
            outcome.output.contains("line 100, in <module>\n    boom = 1 / 0\n"),
            "{line_end:?}: {outcome:#?}"
        );
    }
}

fn the_source_of_definitions_is_found(rig: &Rig) {
    let session = rig.session();
    session.ok("def first(a):\n    # a remark\n    return a\n\nclass Thing:\n    def method(self):\n        return 5");
    session.ok("second = lambda: 'second'");
    let printed = session.ok("import inspect\nprint(inspect.getsource(first), inspect.getsource(Thing.method), inspect.getsource(second), sep='|')");
    assert_eq!(
        printed,
        "def first(a):\n    # a remark\n    return a\n|    def method(self):\n        return 5\n|second = lambda: 'second'\n\n"
    );
    if rig.python_minor() >= 9 {
        assert!(
            session
                .ok("print(inspect.getsource(Thing))")
                .starts_with("class Thing:\n")
        );
    }
}

fn dataclasses_and_doctest_work(rig: &Rig) {
    let session = rig.session();
    let printed = session.ok("from dataclasses import dataclass, field, asdict
from typing import List, NamedTuple, get_type_hints
@dataclass(order=True)
class Point:
    x: int
    tags: List[str] = field(default_factory=list)
class Pair(NamedTuple):
    a: int
print(Point(1), asdict(Point(2)), Point(1) < Point(2), Pair(3), get_type_hints(Point)['x'])");
    assert_eq!(
        printed,
        "Point(x=1, tags=[]) {'x': 2, 'tags': []} True Pair(a=3) <class 'int'>\n"
    );
    let printed = session.ok("import doctest
def triple(x):
    '''
    >>> triple(2)
    6
    >>> triple('a')
    'aab'
    '''
    return 3 * x
print(doctest.testmod())");
    assert!(printed.contains("Expected:\n    'aab'\nGot:\n    'aaa'\n"), "{printed}");
    assert!(printed.ends_with("TestResults(failed=1, attempted=2)\n"), "{printed}");
}

fn the_last_expression_is_not_printed(rig: &Rig) {
    let session = rig.session();
    assert_eq!(session.ok("1 + 1"), "");
    assert_eq!(session.ok("for i in range(2):\n    i\n'x'"), "");
}
