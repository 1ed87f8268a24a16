//! The figures of `read_file`: the size of a file does not matter to a page of it.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, SessionOptions};

use crate::measure::{Result, numbers, say};

pub(crate) const FIGURES: [&str; 1] = ["pages"];

const LARGE: u64 = 2 << 30;

/// The same page of both files, in turn.
const SCRIPT: &str = "
from time import perf_counter_ns
from hermes_tools import read_file
def taken(path):
    began = perf_counter_ns()
    page = read_file(path, limit=20)
    time = perf_counter_ns() - began
    assert page['content'].startswith('1|line 1 ') and page['content'].count('\\n') == 19
    return time
assert read_file('large')['total_lines'] is None
for round in range(200):
    print(taken('small'), taken('large'))";

pub(crate) async fn measure() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, lines) in [("small", 46), ("large", 20_000_000)] {
        write(&folder.path().join(name), lines)?;
    }
    let size = folder.path().join("large").metadata()?.len();
    if size < LARGE {
        return Err(format!("the large file has {size} bytes").into());
    }
    let broker = Broker::new(4);
    let session = broker.open(SessionOptions::local(folder.path(), Environment::of_this_process()))?;
    let mut cell = Cell::new(SCRIPT);
    cell.limits.max_tool_calls = Some(1000);
    let times = numbers(&session.execute(cell).await)?;
    let every_other = |first: usize| -> Vec<Duration> { times.iter().skip(first).step_by(2).copied().collect() };
    say("pages", &every_other(1), "2 KiB", &every_other(0), 1.5)?;
    broker.close().await;
    Ok(())
}

/// Lines of some 45 bytes; far on they are not written, which makes no difference to a page at the beginning.
fn write(path: &Path, lines: u64) -> Result<()> {
    let file = std::fs::File::create(path)?;
    let mut out = std::io::BufWriter::new(&file);
    let written = lines.min(1_000_000);
    for line in 1..=written {
        writeln!(out, "line {line} of a text that a script reads a page of")?;
    }
    out.flush()?;
    drop(out);
    if lines > written {
        file.set_len(LARGE)?;
    }
    Ok(())
}
