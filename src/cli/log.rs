//! `talaria log`: what was done, by whom and where, for people.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use talaria_broker::audit::{Follower, Line, find_script, harmless, in_order, stamp};
use talaria_broker::config::Flags;
use talaria_broker::environment::Environment;
use talaria_broker::outcome::Status;

use super::args::{Global, Log, LogPart};
use super::{UsageError, say};

/// Time between two looks for new lines.
const LOOK: Duration = Duration::from_millis(200);
/// Digits of a name or digest that people are shown.
const SHORT: usize = 12;
const SESSION: usize = 8;

pub(super) fn run(verb: &Log, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let config = super::load(global, environment, Flags::default())?;
    let folder = config.audit.folder(environment);
    if let Some(LogPart::Show { digest }) = &verb.part {
        let (_, source) = find_script(&folder, digest).map_err(UsageError)?;
        let source = if io::stdout().is_terminal() {
            String::from_utf8_lossy(&source)
                .lines()
                .map(plain)
                .collect::<String>()
                .into_bytes()
        } else {
            source
        };
        return quietly(io::stdout().lock().write_all(&source));
    }
    let mut reader = Reader::new(verb, &folder);
    // Begun first, so that no line falls between the two.
    let follower = verb.follow.then(|| Follower::new(&folder)).transpose();
    let mut follower = follower.with_context(|| format!("{} cannot be read", folder.display()))?;
    let files = in_order(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    if files.is_empty() {
        let why = if config.audit.enabled {
            ""
        } else {
            " (audit.enabled is off)"
        };
        say(&format!("nothing is recorded in {}{why}", folder.display()));
    }
    for file in &files {
        reader
            .read(file)
            .with_context(|| format!("{} cannot be read", file.display()))?;
    }
    let code = quietly(super::write(&reader.take(verb.lines)))?;
    if reader.skipped > 0 {
        say(&format!(
            "{} of the log could not be read and {} passed over",
            count(reader.skipped, "line"),
            if reader.skipped == 1 { "was" } else { "were" }
        ));
    }
    while let Some(follower) = &mut follower {
        std::thread::sleep(LOOK);
        let new = follower
            .read()
            .with_context(|| format!("{} cannot be read", folder.display()))?;
        for line in new.split_inclusive(|byte| *byte == b'\n') {
            reader.line(line);
        }
        // Those that run are shown when they end.
        reader.running.clear();
        match super::write(&reader.take(0)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.context("the output cannot be written")?,
        }
    }
    Ok(code)
}

/// A reader of our output that has gone ends the verb quietly.
fn quietly(written: io::Result<()>) -> anyhow::Result<u8> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        written => written.context("the output cannot be written").map(|()| 0),
    }
}

/// What is asked for of the lines that go by.
struct Reader<'a> {
    verb: &'a Log,
    folder: PathBuf,
    since: Option<String>,
    /// What is to be shown, by its place in the log.
    found: VecDeque<(u64, Found)>,
    /// Cells that have begun and not ended.
    running: BTreeMap<u64, Found>,
    by_key: HashMap<Key, u64>,
    seen: u64,
    skipped: u64,
}

/// A line that is to be shown.
enum Found {
    Line(Box<Line>),
    Json(String),
}

/// A cell: broker, session, number.
type Key = (String, String, Option<u64>);

impl<'a> Reader<'a> {
    fn new(verb: &'a Log, folder: &Path) -> Self {
        let since = verb.since.and_then(|since| SystemTime::now().checked_sub(since));
        Self {
            verb,
            folder: folder.to_owned(),
            since: since.map(stamp),
            found: VecDeque::new(),
            running: BTreeMap::new(),
            by_key: HashMap::new(),
            seen: 0,
            skipped: 0,
        }
    }

    fn read(&mut self, file: &Path) -> io::Result<()> {
        let mut file = match File::open(file) {
            Ok(file) => BufReader::new(file),
            // Put aside or removed since the folder was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut line = Vec::new();
        while file.read_until(b'\n', &mut line)? > 0 {
            self.line(&line);
            line.clear();
        }
        Ok(())
    }

    fn line(&mut self, raw: &[u8]) {
        let raw = raw.trim_ascii();
        if raw.is_empty() {
            return;
        }
        let Some(line) = serde_json::from_slice::<Line>(raw)
            .ok()
            .filter(|line| !line.event.is_empty())
        else {
            self.skipped += 1;
            return;
        };
        self.seen += 1;
        let key = (line.broker.clone(), line.session.clone(), line.cell);
        if line.event == "cell"
            && let Some(began) = self.by_key.remove(&key)
        {
            self.running.remove(&began);
        }
        if !self.is_asked_for(&line) {
            return;
        }
        let is_start = line.event == "start";
        let found = match self.verb.json {
            true => Found::Json(harmless_json(&String::from_utf8_lossy(raw)) + "\n"),
            false => Found::Line(Box::new(line)),
        };
        if is_start && (self.verb.failed || !self.verb.json) {
            self.by_key.insert(key, self.seen);
            self.running.insert(self.seen, found);
            return;
        }
        self.found.push_back((self.seen, found));
        if self.verb.lines > 0 && self.found.len() > self.verb.lines {
            self.found.pop_front();
        }
    }

    fn is_asked_for(&self, line: &Line) -> bool {
        let verb = self.verb;
        let is = |asked: &Option<String>, value: &str| asked.as_ref().is_none_or(|asked| asked == value);
        let session = verb.session.as_ref();
        session.is_none_or(|asked| line.session.starts_with(asked.as_str()))
            && is(&verb.target, &line.target)
            && (verb.tool.is_none() || line.tool == verb.tool)
            && self.since.as_ref().is_none_or(|since| line.time >= *since)
            && (!verb.failed || line.is_failure() || line.event == "start")
    }

    /// The last of what was found, in the order of the log; all of it for 0.
    fn take(&mut self, last: usize) -> String {
        let mut all: Vec<(u64, Found)> = self.found.drain(..).collect();
        all.extend(std::mem::take(&mut self.running));
        all.sort_by_key(|(place, _)| *place);
        let left_out = if last == 0 { 0 } else { all.len().saturating_sub(last) };
        let shown = all.into_iter().skip(left_out).map(|(_, found)| match found {
            Found::Line(line) => self.shown(&line),
            Found::Json(json) => json,
        });
        shown.collect()
    }

    /// A line for people.
    fn shown(&self, line: &Line) -> String {
        let mut parts = vec![
            line.time.replacen('T', " ", 1),
            format!(
                "{}/{}",
                short(&line.session, SESSION),
                line.cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string())
            ),
            line.who.clone(),
            line.target.clone(),
        ];
        match line.event.as_str() {
            "gap" => parts.push(format!("GAP: {} not recorded", count(line.lost.unwrap_or(0), "line"))),
            "start" => parts.push("cell: no end is recorded (it runs, or its broker was killed)".to_owned()),
            "cell" => parts.extend(cell(line)),
            _ => parts.extend(call(line)),
        }
        parts.extend(
            line.script
                .as_ref()
                .map(|digest| format!("script {}", short(digest, SHORT))),
        );
        parts.extend(line.error.as_ref().map(|error| format!("error: {error}")));
        let mut text = harmless(&parts.join("  ")) + "\n";
        if self.verb.script
            && let Some(digest) = &line.script
        {
            text.push_str(&match find_script(&self.folder, digest) {
                Ok((_, source)) => String::from_utf8_lossy(&source)
                    .lines()
                    .map(|line| format!("    {}", plain(line)))
                    .collect(),
                Err(why) => format!("    ({})\n", harmless(&why)),
            });
        }
        text
    }
}

fn cell(line: &Line) -> Vec<String> {
    let status = match line.status {
        _ if line.ran == Some(false) => "did not run",
        Some(Status::Success) => "success",
        Some(Status::Timeout) => "timeout",
        Some(Status::Interrupted) => "interrupted",
        Some(Status::Error) | None => "error",
    };
    let mut parts = vec![format!("cell: {status}")];
    if line.ran != Some(false) {
        parts.extend(
            line.exit_code
                .filter(|code| *code != 0)
                .map(|code| format!("exit {code}")),
        );
        parts.extend(line.duration.map(seconds));
        parts.extend(line.tool_calls.map(|calls| count(calls, "tool call")));
    }
    parts.extend(
        line.refused_calls
            .map(|calls| format!("{} refused", count(calls, "call"))),
    );
    parts
}

fn call(line: &Line) -> Vec<String> {
    let mut parts = vec![format!(
        "{}({})",
        line.tool.as_deref().unwrap_or("?"),
        line.arguments.as_deref().unwrap_or_default()
    )];
    let decision = line.decision.as_deref().filter(|decision| *decision != "allowed");
    // Where it was refused, the error says why again.
    parts.extend(decision.map(|decision| match decision.split_once(':') {
        Some((word, _)) if line.error.is_some() && word == "refused" => word.to_owned(),
        _ => decision.to_owned(),
    }));
    parts.extend(
        line.exit_code
            .filter(|code| *code != 0)
            .map(|code| format!("exit {code}")),
    );
    parts.extend(line.duration.map(seconds));
    parts
}

fn seconds(seconds: f64) -> String {
    if seconds < 0.1 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

fn count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn short(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(at, _)| &text[..at])
}

/// A line of a script as a terminal may get it.
fn plain(line: &str) -> String {
    let parts: Vec<String> = line.split('\t').map(harmless).collect();
    parts.join("\t") + "\n"
}

/// JSON whose strings hold no character that a terminal acts upon.
fn harmless_json(json: &str) -> String {
    json.chars()
        .fold(String::with_capacity(json.len()), |mut text, character| {
            if !character.is_control() && harmless(character.encode_utf8(&mut [0; 4])).starts_with(character) {
                text.push(character);
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_is_the_same_json() {
        let json = "{\"a\":\"\u{9b}31m\u{202e}é\u{e0001}\\n\"}";
        let shown = harmless_json(json);
        assert_eq!(shown, "{\"a\":\"\\u009b31m\\u202eé\\udb40\\udc01\\n\"}");
        let (one, other): (serde_json::Value, serde_json::Value) = (
            serde_json::from_str(json).unwrap_or_default(),
            serde_json::from_str(&shown).unwrap_or_default(),
        );
        assert_eq!(one, other);
    }
}
