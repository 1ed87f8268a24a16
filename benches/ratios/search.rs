//! The figures of `search_files`, on a tree like the checkout of a large project.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use talaria_broker::backends::command::{CommandBackend, CommandOptions};
use talaria_broker::broker::Broker;
use talaria_broker::environment::Environment;
use talaria_broker::session::{Cell, Session, SessionOptions};

use crate::measure::{Result, numbers, say};

pub(crate) const FIGURES: [&str; 1] = ["search"];

/// Files of the tree: more than half of them sources, the rest ignored; and bytes of its history.
const FILES: usize = 20_000;
const PACK: usize = 200 << 20;
/// What each figure searches for: nearly nowhere, in every file, an expression.
const PATTERNS: [(&str, &str); 3] = [
    ("rare", "needle_in_the_hay"),
    ("common", "return"),
    ("regex", r"fn \w+_7\(.*self"),
];

pub(crate) async fn measure() -> Result<()> {
    let tree = tempfile::tempdir()?;
    grow(tree.path())?;
    let broker = Broker::new(4);
    let here = broker.open(SessionOptions::local(tree.path(), Environment::of_this_process()))?;
    let there = broker.open(elsewhere(tree.path())?)?;
    for (name, pattern) in PATTERNS {
        let (mut ours, mut remote, mut rg, mut grep) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..12 {
            let mine = searched(&here, pattern).await?;
            let theirs = printed(Command::new("rg").args(["-n", pattern]), tree.path())?;
            let python = searched(&there, pattern).await?;
            // It has no `\w` without -P; \w is GNU's own.
            let slow = printed(
                Command::new("grep").args(["-rnE", &pattern.replace(r"\(", "[(]"), "."]),
                tree.path(),
            )?;
            if round > 0 {
                ours.extend(mine);
                remote.extend(python);
                rg.push(theirs);
                grep.push(slow);
            }
        }
        say(&format!("search-{name}"), &ours, "rg -n", &rg, 1.3)?;
        say(&format!("search-{name}"), &ours, "grep -rn", &grep, 0.2)?;
        say(&format!("search-{name}-python"), &remote, "grep -rn", &grep, 1.0)?;
    }
    broker.close().await;
    Ok(())
}

fn elsewhere(folder: &Path) -> Result<SessionOptions> {
    let environment = Environment::of_this_process();
    let options = CommandOptions {
        target: "exec:".to_owned(),
        environment: environment
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        ..CommandOptions::default()
    };
    let backend = Arc::new(CommandBackend::new(options)?);
    let mut options = SessionOptions::elsewhere("exec:", backend, environment);
    options.cwd = Some(folder.to_owned());
    Ok(options)
}

/// From the call in a script to its result.
async fn searched(session: &Session, pattern: &str) -> Result<Vec<Duration>> {
    let script = format!(
        "
from time import perf_counter_ns
from hermes_tools import search_files
began = perf_counter_ns()
found = search_files({pattern:?})
time = perf_counter_ns() - began
assert found['total_count'] > 0, found
print(time)"
    );
    numbers(&session.execute(Cell::new(script)).await)
}

/// A command whose output is read to its end.
fn printed(command: &mut Command, folder: &Path) -> Result<Duration> {
    let began = Instant::now();
    let output = command.current_dir(folder).output()?;
    let time = began.elapsed();
    if output.status.success() && !output.stdout.is_empty() {
        Ok(time)
    } else {
        Err(format!("{command:?}: {}", output.status).into())
    }
}

/// Makes the tree: packages of modules, what a build and a package manager leave beside them, a repository's own folder.
fn grow(root: &Path) -> Result<()> {
    std::fs::write(
        root.join(".gitignore"),
        "/target\n*.pyc\n*.log\nnode_modules/\n/dist/\n!keep.log\n",
    )?;
    for number in 0..FILES {
        let folder = match number % 10 {
            0..6 => format!("crates/part{}/src/module{}", number % 50, number / 50 % 20),
            6..8 => format!("target/debug/deps{}", number / 10 % 20),
            _ => format!("web/node_modules/package{}/lib", number / 10 % 200),
        };
        let folder = root.join(folder);
        std::fs::create_dir_all(&folder)?;
        if number % 100 == 99 || number % 100 == 5 {
            std::fs::write(folder.join(format!("image{number}.png")), b"\x89PNG\0".repeat(800))?;
        } else {
            let ending = ["rs", "py", "md", "toml"][number / 10 % 4];
            std::fs::write(folder.join(format!("file{number}.{ending}")), text(number))?;
        }
    }
    let packs = root.join(".git/objects/pack");
    std::fs::create_dir_all(&packs)?;
    let mut state = 1_u64;
    let pack: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()
    })
    .take(PACK / 8)
    .flatten()
    .collect();
    std::fs::write(packs.join("pack-1.pack"), pack)?;
    Ok(())
}

/// Some hundred lines of something like a program; one file in a thousand has the needle, one in ten is no ASCII.
fn text(number: usize) -> String {
    let mut text = String::new();
    for line in 0..40 + number * 7919 % 300 {
        let name = number * 31 + line * 17;
        text.push_str(&match line % 6 {
            0 => format!("/// The part {name} of what is done here, in so many words.\n"),
            1 => format!(
                "pub fn name_{}(&mut self, value: u64) -> Option<String> {{\n",
                name % 1000
            ),
            2 => format!("    let found = self.table.get(&{name}).map(|entry| entry.value + value)?;\n"),
            3 if number.is_multiple_of(10) => format!("    // caf\u{e9} {name} \u{2014} na\u{ef}ve\n"),
            3 => "    self.count += 1;\n".to_owned(),
            4 if line == 4 && number % 1000 == 1 => "    needle_in_the_hay();\n".to_owned(),
            4 => format!("    return Some(found.to_string() + \"{name}\");\n"),
            _ => "}\n\n".to_owned(),
        });
    }
    text
}
