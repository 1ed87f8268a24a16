//! What a change of a large file takes, beside a copy of it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, Session, SessionOptions};
use talaria_broker::tools::BuiltinTools;

use crate::measure::{Result, numbers, run, say};

pub(crate) const FIGURES: [&str; 1] = ["patch"];

const SIZE: usize = 10 << 20;

/// One text for another in the midst of the file, as a script sees it. What comes is as long as what goes.
const REPLACE: &str = "
from time import perf_counter_ns
from hermes_tools import patch
began = perf_counter_ns()
result = patch('file', 'value OLD of the line in the midst', 'value NEW of the line in the midst')
print(perf_counter_ns() - began)
assert 'error' not in result, result";

/// The same as a patch.
const V4A: &str = "
from time import perf_counter_ns
from hermes_tools import patch
text = '''*** Begin Patch
*** Update File: file
@@ before the midst
-value OLD of the line in the midst
+value NEW of the line in the midst
*** End Patch'''
began = perf_counter_ns()
result = patch(mode='patch', patch=text)
print(perf_counter_ns() - began)
assert 'error' not in result, result";

pub(crate) async fn measure() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    std::fs::write(&file, content())?;
    let broker = Broker::new(4);
    let mut options = SessionOptions::local(folder.path(), Environment::of_this_process());
    options.host = Arc::new(BuiltinTools::new(None));
    let session = broker.open(options)?;
    for (name, script) in [("patch-replace", REPLACE), ("patch-v4a", V4A)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..31 {
            let (one, other) = if round % 2 == 0 { ("old", "new") } else { ("new", "old") };
            let script = script.replace("OLD", one).replace("NEW", other);
            let mine = patch(&session, script).await?;
            let copied = copy(&file)?;
            // The first of each warms what is measured.
            if round > 1 {
                ours.extend(mine);
                theirs.push(copied);
            }
        }
        // It is to begin as it was.
        std::fs::write(&file, content())?;
        say(name, &ours, "cp of the 10 MiB", &theirs, 6.0)?;
    }
    broker.close().await;
    Ok(())
}

fn content() -> String {
    let line = "a line of source as there are many, neither long nor short\n";
    let half = line.repeat(SIZE / 2 / line.len());
    format!("{half}before the midst\nvalue old of the line in the midst\n{half}")
}

async fn patch(session: &Session, script: String) -> Result<Vec<Duration>> {
    numbers(&session.execute(Cell::new(script)).await)
}

fn copy(file: &Path) -> Result<Duration> {
    let copy = file.with_extension("copy");
    let time = run(Command::new("cp").arg(file).arg(&copy))?;
    std::fs::remove_file(copy)?;
    Ok(time)
}
