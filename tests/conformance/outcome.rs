//! The record that a cell ends with: every row of its table, and every field.

use talaria_broker::outcome::Status;

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![a_cell_that_ran_to_its_end, a_cell_of_a_file_that_ran_too_long];

fn a_cell_that_ran_to_its_end(rig: &Rig) {
    let outcome = rig.session().cell("print('x')");
    assert_eq!((outcome.status, outcome.exit_code), (Status::Success, Some(0)));
    assert_eq!((outcome.output.as_str(), outcome.stdout_bytes_total), ("x\n", 2));
}

fn a_cell_of_a_file_that_ran_too_long(rig: &Rig) {
    let session = rig.session();
    let outcome = session.file("print('x')");
    assert_eq!(outcome.status, Status::Success);
    let outcome = session.cell_for(0.5, "print('before')\nimport time\ntime.sleep(60)");
    assert_eq!((outcome.status, outcome.exit_code), (Status::Timeout, Some(124)));
    let line = "Script timed out after 0.5s and was killed.";
    assert_eq!(outcome.output, format!("before\n{line}"));
    assert_eq!(outcome.error.as_deref(), Some(line));
}
