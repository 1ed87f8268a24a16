//! Hints: the likely next step of a script that did not do what was meant.

use talaria_broker::session::Cell;

use crate::rig::{Rig, python, python_minor};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    hints_name_the_next_step,
    no_hint_where_none_is_due,
    a_tool_that_is_not_allowed
];

fn hints_name_the_next_step(rig: &Rig) {
    let session = rig.session();
    let install = format!("terminal(\"{} -m pip install numpy_of_nowhere\")", python().display());
    // Older ones do not say of what type it is.
    let search = if python_minor() < 11 {
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
