//! Hints: the likely next step of a script that did not do what was meant.

use talaria_broker::session::Cell;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    hints_name_the_next_step,
    no_hint_where_none_is_due,
    a_tool_that_is_not_allowed,
    a_failed_call_is_named_when_its_result_lacks_a_key,
    calls_that_all_failed_unnoticed_are_told,
    names_that_are_nearly_right,
    a_wrong_call_shows_the_signature,
    notebook_syntax_is_known_by_its_line,
];

fn hints_name_the_next_step(rig: &Rig) {
    let session = rig.session();
    let install = format!(
        "terminal(\"{} -m pip install numpy_of_nowhere\")",
        rig.python().display()
    );
    // Older ones do not say of what type it is.
    let search = if rig.python_minor() < 11 {
        "terminal('true')[:1]"
    } else {
        "re.search('a', terminal('true'))"
    };
    let search = format!("from hermes_tools import terminal\nimport re\n{search}");
    for (code, hint) in [
        ("import numpy_of_nowhere.linalg", install.as_str()),
        ("from numpy_of_nowhere import array", install.as_str()),
        (
            "!pip install numpy",
            "print(terminal(\"pip install numpy\")[\"output\"])",
        ),
        ("x = 1\n%timeit x", "terminal(\"timeit x\")"),
        ("print(terminal('ls'))", "from hermes_tools import terminal"),
        (
            "def f():\n    return read_file('x')\nf()",
            "from hermes_tools import read_file",
        ),
        ("json_parse('{}')", "from hermes_tools import json_parse"),
        (
            "from hermes_tools import terminl",
            "terminl is not available in this cell; tools",
        ),
        (
            "from hermes_tools import terminal\nterminal('true').strip()",
            "terminal(…)[\"output\"]",
        ),
        (
            "from hermes_tools import terminal\nterminal('true') + 'x'",
            "terminal(…)[\"output\"]",
        ),
        (
            "from hermes_tools import terminal\nterminal('true')[:10]",
            "terminal(…)[\"output\"]",
        ),
        (
            "from hermes_tools import terminal\nimport json\njson.loads(terminal('true'))",
            "terminal(…)[\"output\"]",
        ),
        (search.as_str(), "terminal(…)[\"output\"]"),
        ("x = 5\nx + 1", "print("),
        ("async def f():\n    return 3\nawait f()", "print("),
        ("sorted([2, 1])", "print("),
    ] {
        let outcome = session.cell(code);
        let found = outcome.hint.as_deref().unwrap_or_default();
        assert!(found.contains(hint), "{code}\n{hint}\n{outcome:#?}");
    }
}

fn no_hint_where_none_is_due(rig: &Rig) {
    let session = rig.session();
    for code in [
        "x = 5",
        "print(1)\nx = 2\nx + 1",
        "None",
        "print(1)",
        "[].sort()",
        "raise ValueError('x')",
        "undefined_name",
        "'text'.nothing",
        "{'a': 1}.nothing",
        "import sys; sys.exit(1)",
        "print(",
        "def f():\n    x = '''\n!important\n'''\nf()",
        "'a' + 1",
        "{}['key']",
        "x = '''\n!important\n'''\nprint(",
        "eval('!ls')",
        "None.strip()",
        "def f(): pass\nf(1)",
        "from hermes_tools import terminal\nterminal('true')\n{}['two words']",
        "from hermes_tools import terminal\nterminal('true')\n{}['output']",
        "from hermes_tools import read_file\nprint(read_file('nowhere'))",
        "from hermes_tools import read_file\nimport json; print(json.dumps([read_file('nö/such \"file\"')]))",
        "from hermes_tools import read_file\nraise OSError(read_file('nowhere')['error'])",
        "from hermes_tools import terminal\nprint(terminal('exit 3')['exit_code'])",
        "from hermes_tools import read_file\nprint('x\\n' * 20000, read_file('nowhere'), 'x\\n' * 40000)",
        "from hermes_tools import write_file, read_file\nwrite_file('made', 'x'), read_file('nowhere'), read_file('made')\nprint(1)",
    ] {
        let outcome = session.cell(code);
        assert_eq!(outcome.hint, None, "{code}\n{outcome:#?}");
    }
}

fn a_tool_that_is_not_allowed(rig: &Rig) {
    let session = rig.session();
    let allow = |code: &str| {
        let mut cell = Cell::new(code);
        cell.allowed_tools = Some(vec!["read_file".to_owned()]);
        session.run(cell).hint.unwrap_or_default()
    };
    for code in ["terminal('ls')", "from hermes_tools import terminal"] {
        let hint = allow(code);
        assert!(
            hint.starts_with("terminal is not available in this cell"),
            "{code}: {hint}"
        );
        assert!(hint.ends_with(": read_file"), "{hint}");
    }
}

fn a_failed_call_is_named_when_its_result_lacks_a_key(rig: &Rig) {
    let session = rig.session();
    let hint = |code: &str| {
        let code = format!("from hermes_tools import read_file, terminal\n{code}");
        session.cell(&code).hint.unwrap_or_default()
    };
    for code in [
        "read_file('nowhere')['content']",
        "read_file('nowhere')['total_lines']",
        "terminal('true')\nread_file('nowhere').get('content').strip()",
        "len(read_file('nowhere').get('content'))",
        "'a' + read_file('nowhere').get('content')",
    ] {
        let hint = hint(code);
        assert!(
            hint.starts_with("read_file failed: ") && hint.contains("nowhere") && hint.contains("look for it first"),
            "{code}: {hint}"
        );
    }
    let refused = hint("read_file('x', offset='y' * 1000)['content']");
    assert!(
        refused.starts_with("read_file failed: ") && refused.len() < 500,
        "{refused}"
    );
    let long = hint(&format!("read_file('{}')['content']", "n/".repeat(600)));
    assert!(long.contains("… (a failed tool") && long.len() < 500, "{long}");
    let other = hint("terminal('true')['stdout']");
    assert!(
        other.contains("stdout") && other.contains("output, exit_code, error"),
        "{other}"
    );
    rig.file("f", "text");
    assert!(hint("read_file('f')['error']").contains("result.get(\"error\")"));
    // What an earlier cell did wrong is none of this one's business.
    assert_eq!(hint("{}['content']"), "");
}

fn calls_that_all_failed_unnoticed_are_told(rig: &Rig) {
    let session = rig.session();
    let hint = |code: &str| {
        let code = format!("from hermes_tools import *\n{code}");
        session.cell(&code).hint.unwrap_or_default()
    };
    rig.file("src/a.py", "old_api_call(1)");
    for (code, expected) in [
        (
            "for page in web_extract(['ftp://one.example', 'ftp://two.example'])['results']:\n    if page['content']: print(page)\nprint([])",
            "the only call of web_extract failed: ",
        ),
        (
            "fixed = sum('error' not in patch(path=f'src/{name}.py', old_string='x', new_string='y') for name in 'bcd')\nprint(f'Fixed {fixed}')",
            "all 3 calls of patch failed, the last with: ",
        ),
        (
            "patch(path='src/a.py', old_string='old_api_cal(', new_string='f('); print(read_file('src/a.py')['total_lines'])",
            "the only call of patch failed: ",
        ),
        (
            "import sys\nif 'error' in read_file('nowhere'): sys.exit(3)",
            "the only call of read_file failed: ",
        ),
        (
            "import json\njson.loads(read_file('nowhere').get('content', ''))",
            "the only call of read_file failed: ",
        ),
        (
            "print(terminal('true', workdir='/no-such')['output'])",
            "the only call of terminal failed: ",
        ),
        (
            "import hermes_tools\nx = hermes_tools._call('read_file', {'pth': 'x'})",
            "did you mean \"path\"?",
        ),
    ] {
        let hint = hint(code);
        assert!(hint.contains(expected), "{code}: {hint}");
    }
}

fn names_that_are_nearly_right(rig: &Rig) {
    let session = rig.session();
    for (code, expected) in [
        ("import hermes_tool", "did you mean hermes_tools?"),
        ("from hermestools import terminal", "did you mean hermes_tools?"),
        ("from hermes_tools import terminl", "did you mean terminal?"),
        (
            "import hermes_tools\nhermes_tools.raed_file('x')",
            "did you mean read_file?",
        ),
        ("termnal('ls')", "did you mean terminal?"),
        ("import numpy_of_nowhere", "working directory or on PYTHONPATH"),
    ] {
        let hint = session.cell(code).hint.unwrap_or_default();
        assert!(hint.contains(expected), "{code}: {hint}");
        assert!(!hint.contains("pip install hermes"), "{code}: {hint}");
    }
}

fn a_wrong_call_shows_the_signature(rig: &Rig) {
    let session = rig.session();
    for call in [
        "terminal('ls', cwd='/')",
        "terminal()",
        "terminal(1, 2, 3, 4, 5, 6, 7)",
        "terminal('ls', command='ls')",
    ] {
        let hint = session
            .cell(format!("from hermes_tools import terminal\n{call}"))
            .hint
            .unwrap_or_default();
        assert!(hint.contains("terminal(command: str, timeout: "), "{call}: {hint}");
    }
}

fn notebook_syntax_is_known_by_its_line(rig: &Rig) {
    let session = rig.session();
    for (code, expected) in [
        ("x = 1\nfiles = !ls -l", "terminal(\"ls -l\")"),
        ("text = '''\n!no\n'''\n!yes", "terminal(\"yes\")"),
        ("%matplotlib inline\nx = 1", "drop the line"),
    ] {
        let hint = session.cell(code).hint.unwrap_or_default();
        assert!(hint.contains(expected), "{code}: {hint}");
    }
}
