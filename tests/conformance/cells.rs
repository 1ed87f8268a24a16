//! State and clean starts: what one cell leaves to the next.

use talaria_broker::session::Cell;

use crate::rig::{Rig, python_minor};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    state_is_kept,
    the_interpreter_is_the_one_named,
    modules_of_the_project_are_found,
    tools_answer_in_every_cell,
    a_child_of_a_session_ends_with_it,
];

fn state_is_kept(rig: &Rig) {
    let session = rig.session();
    session.ok("import math\nx = 20\ndef f(n): return n + x");
    assert_eq!(session.ok("print(f(1), math.floor(2.5), __name__)"), "21 2 __main__\n");
}

fn the_interpreter_is_the_one_named(rig: &Rig) {
    let outcome = rig.session().cell("import sys; print(sys.version_info[1])");
    assert_eq!(outcome.output, format!("{}\n", python_minor()));
    let python = outcome.kernel.unwrap().python;
    assert!(python.contains(&format!(" (3.{}.", python_minor())), "{python}");
}

fn modules_of_the_project_are_found(rig: &Rig) {
    rig.file("shop/__init__.py", "");
    rig.file("shop/cart.py", "TOTAL = 3");
    let printed = rig
        .session()
        .ok("from shop.cart import TOTAL; print(TOTAL, open('shop/cart.py').read())");
    assert_eq!(printed, "3 TOTAL = 3\n");
}

fn tools_answer_in_every_cell(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| options.host = tools.clone());
    session.ok("from hermes_tools import echo, slow, count, fail");
    for number in 1..4 {
        let code = format!("print(echo({number})['value'], slow(0.01, 'x'), count(), 'error' in fail())");
        assert_eq!(
            session.ok(&code),
            format!("{number} {{'value': 'x'}} {{'count': {number}}} True\n")
        );
    }
    assert_eq!(tools.calls("echo").len(), 3);
}

fn a_child_of_a_session_ends_with_it(rig: &Rig) {
    let session = rig.session();
    let cell = Cell::new("import subprocess\nprint(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)");
    let pid = session.run(cell).output.trim().parse().unwrap();
    assert!(crate::observe::is_alive(pid));
    session.close();
    assert!(!crate::observe::is_alive(pid));
}
