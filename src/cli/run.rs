//! `talaria run`

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use anyhow::{Context, anyhow};
use talaria_broker::broker::Broker;
use talaria_broker::config::Flags;
use talaria_broker::environment::{Environment, PassRules};
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cancel, Cell, Session, SessionOptions};
use talaria_broker::target::TargetKind;
use talaria_broker::telemetry::TraceContext;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{Global, Run};
use super::ask::Asker;
use super::stream::Terminal;
use super::{UsageError, exit, say};

pub(super) fn run(verb: &Run, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let mut cells = cells(verb)?;
    let trace = TraceContext::of_environment(environment);
    for cell in &mut cells {
        cell.trace.clone_from(&trace);
    }
    let flags = Flags {
        target: verb.on.clone(),
        mode: verb.mode,
        timeout: verb.timeout,
        max_tool_calls: verb.max_tool_calls,
        transport: verb.transport,
        cwd: verb.cwd.clone(),
        python: verb.python.clone(),
        ask: verb.ask.clone(),
    };
    let config = super::load(global, environment, flags)?;
    let resolved = match config.resolve(&config.target) {
        Ok(mut resolved) => {
            resolved.mounts.clone_from(&verb.mount);
            resolved
        }
        Err(error) => {
            return unreachable(verb, config.target.as_str(), &error.to_string(), cells.len());
        }
    };
    let mut options =
        SessionOptions::from_config(&config, &resolved, environment).map_err(|error| UsageError(error.to_string()))?;
    if !verb.mount.is_empty() && !matches!(resolved.spec.kind(), TargetKind::Docker { .. }) {
        return Err(UsageError(format!(
            "--mount is for containers that are made for the run (docker:IMAGE), and {} is none; leave it out, or choose another target with --on",
            resolved.name
        ))
        .into());
    }
    if matches!(resolved.spec.kind(), TargetKind::Exec { command } if command.trim().is_empty()) {
        // As it is when a variable that holds the command is not set.
        say(&format!(
            "warning: no command stands behind `{}`, so scripts run on this machine",
            resolved.name
        ));
    }
    options.passes.session_passthrough.extend(named(&verb.env));
    options.passes.set = given(&verb.env);
    refuse_credentials(&options, environment)?;
    if let Some(names) = &verb.allow {
        options
            .check_allowed(names)
            .map_err(|error| UsageError(format!("the flag --allow: {error}")))?;
    }
    options
        .check_allowed(&verb.ask)
        .map_err(|error| UsageError(format!("the flag --ask: {error}")))?;
    let max_kernels = options.limits.max_session_kernels;
    super::block_on(async {
        let broker = Broker::new(max_kernels);
        let session = broker.open(options).map_err(|error| anyhow!(error))?;
        let code = run_cells(&session, verb, cells).await;
        broker.close().await;
        code
    })
}

/// What is to run, read whole before anything runs.
fn cells(verb: &Run) -> anyhow::Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = verb.code.iter().map(Cell::new).collect();
    let stdin = || {
        let mut source = Vec::new();
        std::io::stdin()
            .read_to_end(&mut source)
            .map_err(|error| UsageError(format!("standard input cannot be read: {error}")))?;
        Ok::<_, UsageError>(Cell::from_file(source))
    };
    for script in &verb.scripts {
        if script == Path::new("-") {
            cells.push(stdin()?);
            continue;
        }
        let source = std::fs::read(script)
            .map_err(|error| UsageError(format!("the script {} cannot be read: {error}", script.display())))?;
        let mut cell = Cell::from_file(source);
        cell.name = script.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        cells.push(cell);
    }
    if cells.is_empty() {
        if std::io::stdin().is_terminal() {
            return Err(UsageError(
                "nothing to run: name a script, give code with -c, or pipe it to standard input".to_owned(),
            )
            .into());
        }
        cells.push(stdin()?);
    }
    for cell in &mut cells {
        cell.arguments = verb
            .arguments
            .iter()
            .map(|argument| argument.clone().into_vec())
            .collect();
        cell.allowed_tools.clone_from(&verb.allow);
    }
    Ok(cells)
}

/// `--env NAME`: passes what is here.
fn named(env: &[String]) -> Vec<String> {
    env.iter().filter(|entry| !entry.contains('=')).cloned().collect()
}

/// `--env NAME=VALUE`
fn given(env: &[String]) -> BTreeMap<String, OsString> {
    env.iter()
        .filter_map(|entry| entry.split_once('='))
        .map(|(name, value)| (name.to_owned(), OsString::from(value)))
        .collect()
}

/// What may not pass: an error where the command line asks for it, a warning where a configuration does, which may be
/// that of another program.
fn refuse_credentials(options: &SessionOptions, environment: &Environment) -> anyhow::Result<()> {
    let asked = PassRules {
        env_passthrough: Vec::new(),
        ..options.passes.clone()
    };
    if let Some(refusal) = environment.cell_environment(&asked).refused.first() {
        return Err(UsageError(refusal.clone()).into());
    }
    for refusal in &environment.cell_environment(&options.passes).refused {
        say(&format!("warning: env_passthrough: {refusal}"));
    }
    Ok(())
}

/// Tells of a target that cannot be opened, once per cell that was asked for.
fn unreachable(verb: &Run, target: &str, error: &str, cells: usize) -> anyhow::Result<u8> {
    if verb.json {
        for _ in 0..if verb.keep_going { cells } else { 1 } {
            super::print(&json_line(&Outcome::refused(target, error))?)?;
        }
    } else {
        say(&format!("error: {error}"));
    }
    Ok(exit::BROKER)
}

async fn run_cells(session: &Session, verb: &Run, cells: Vec<Cell>) -> anyhow::Result<u8> {
    let cancel = Cancel::new();
    let signals = watch_signals(cancel.clone())?;
    let mut code = 0;
    let mut cells = cells.into_iter();
    while let Some(mut cell) = cells.next() {
        cell.cancel = cancel.clone();
        let terminal = (!verb.json).then(|| Terminal::new(cancel.clone(), true));
        let animation = terminal.as_ref().map(Terminal::animate);
        cell.approver = Some(Asker::new(terminal.clone()));
        if let Some(terminal) = &terminal {
            cell.sink = Some(terminal.clone());
        }
        let outcome = session.execute(cell).await;
        if let Some(animation) = animation {
            animation.abort();
        }
        let written = match &terminal {
            None => super::write(&json_line(&outcome)?),
            Some(terminal) => {
                terminal.clear();
                terminal.written()
            }
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(if cells.len() == 0 { 0 } else { exit::UNREAD });
            }
            written => written.context("the output cannot be written")?,
        }
        if terminal.is_some() {
            tell(&outcome);
        }
        if code == 0 {
            code = exit::of_outcome(&outcome);
        }
        if outcome.status != Status::Success && (!verb.keep_going || cancel.is_cancelled()) {
            match cells.len() {
                0 => {}
                _ if cancel.is_cancelled() => {}
                1 => say("1 script was not run (--keep-going goes on after a failure)"),
                left => say(&format!(
                    "{left} scripts were not run (--keep-going goes on after a failure)"
                )),
            }
            break;
        }
    }
    signals.abort();
    Ok(code)
}

/// First Ctrl-C: with the grace. A second one, or another signal that ends programs: at once.
fn watch_signals(cancel: Cancel) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {
                    if cancel.is_cancelled() {
                        cancel.cancel_at_once("Ctrl-C");
                    } else {
                        cancel.cancel("Ctrl-C");
                    }
                }
                _ = terminate.recv() => cancel.cancel_at_once("SIGTERM"),
                _ = hang_up.recv() => cancel.cancel_at_once("SIGHUP"),
            }
        }
    }))
}

fn json_line(outcome: &Outcome) -> anyhow::Result<String> {
    let line = serde_json::to_string(outcome).context("the outcome cannot be written as JSON")?;
    Ok(line + "\n")
}

/// What a person is told beside the output, which has been shown.
fn tell(outcome: &Outcome) {
    let shown_by_traceback = outcome.status == Status::Error && outcome.output.contains("--- stderr ---");
    if let Some(error) = &outcome.error
        && !shown_by_traceback
    {
        say(&format!("error: {error}"));
    }
    if let Some(notice) = &outcome.notice {
        say(&format!("notice: {notice}"));
    }
    if let Some(hint) = &outcome.hint {
        say(&format!("hint: {hint}"));
    }
}
