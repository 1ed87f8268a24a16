//! The command line: one file per verb, no logic of its own.

pub(crate) mod args;
mod ask;
mod completions;
mod config;
mod conformance;
mod doctor;
mod exit;
mod gc;
mod holdings;
mod host;
mod log;
mod ls;
mod mcp;
mod read_pdf;
mod run;
mod schema;
mod stream;

use std::io::{self, Write};

use anyhow::Context;
use clap::Parser;
use talaria_broker::config::{Config, Flags, Sources};
use talaria_broker::environment::Environment;
use talaria_broker::session::proxies;
use talaria_broker::telemetry::Export;
use tracing::warn;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use args::{Cli, Global, Verb};

/// Runs the command line; the exit code.
pub(crate) fn main(environment: &Environment) -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, to stdout and with 0.
            return match quiet_if_unread(error.print()) {
                Err(unwritten) if !error.use_stderr() => fail(&unwritten, exit::BROKER),
                _ => u8::try_from(error.exit_code()).unwrap_or(exit::USAGE),
            };
        }
    };
    let export = match start_log(&cli.global, environment) {
        Ok(export) => export,
        Err(error) => return fail(&error, exit::USAGE),
    };
    let global = &cli.global;
    let result = match cli.verb {
        Verb::Run(verb) => run::run(&verb, global, environment),
        Verb::Doctor(doctor) => doctor::run(&doctor, global, environment),
        Verb::Conformance(verb) => conformance::run(&verb, global, environment),
        Verb::Ls(verb) => ls::run(&verb, environment),
        Verb::Gc(verb) => gc::run(&verb, environment),
        Verb::Mcp(verb) => mcp::run(&verb, global, environment),
        Verb::Log(verb) => log::run(&verb, global, environment),
        Verb::Schema(schema) => schema::run(&schema, global, environment),
        Verb::Config(verb) => config::run(&verb, global, environment),
        Verb::ReadPdf => read_pdf::run(),
        Verb::Completions { shell } => completions::run(shell),
    };
    if let Some(export) = export {
        export.end();
    }
    result.unwrap_or_else(|error| {
        let usage = error.downcast_ref::<UsageError>().is_some();
        fail(&error, if usage { exit::USAGE } else { exit::BROKER })
    })
}

/// What the user must change about the command line or the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

fn fail(error: &anyhow::Error, code: u8) -> u8 {
    say(&format!("error: {error:#}"));
    code
}

/// A line on stderr; one that cannot be written is nobody's to read.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Text on stdout. A reader that has gone ends the verb quietly.
///
/// # Errors
/// The text cannot be written for another reason: whoever needs it must not take it for written.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    quiet_if_unread(write(text))
}

/// Text on stdout, with everything that prevents it as an error.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn quiet_if_unread(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("the output cannot be written"),
    }
}

/// Starts the log, and the export of traces where that is asked for.
fn start_log(global: &Global, environment: &Environment) -> anyhow::Result<Option<Export>> {
    let level = match global.verbose {
        0 => "warn",
        1 => "info,talaria_broker=debug",
        _ => "trace",
    };
    let asked = environment.filled("TALARIA_LOG").and_then(std::ffi::OsStr::to_str);
    let filter = match asked {
        Some(asked) if global.verbose == 0 => EnvFilter::try_new(asked).map_err(|error| {
            UsageError(format!(
                "TALARIA_LOG cannot be read ({error}); write for instance debug"
            ))
        })?,
        _ => EnvFilter::new(level),
    };
    // What an engine says of a container holds the container's secrets, and its client logs that; what is asked of a
    // provider holds its key. Others tell of what is an error of a tool or no error at all.
    let quiet = [
        "bollard=info",
        "hyper=info",
        "hyper_util=info",
        "h2=info",
        "reqwest=info",
        // It logs what clients send and get, and that is theirs.
        "rmcp=error",
        "rustls=info",
        "rustls_platform_verifier=off",
        "tonic=info",
        "tower=info",
        "html5ever=error",
        // Spans are exported; in the log they would say the same over and over.
        "talaria::trace=off",
    ]
    .map(str::parse::<tracing_subscriber::filter::Directive>);
    let filter = quiet
        .into_iter()
        .flatten()
        .fold(filter, tracing_subscriber::EnvFilter::add_directive);
    let writer = match &global.log_file {
        None => BoxMakeWriter::new(io::stderr),
        Some(path) => {
            use std::os::unix::fs::OpenOptionsExt;
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path)
                .with_context(|| format!("the log file {} cannot be opened", path.display()))?;
            BoxMakeWriter::new(std::sync::Mutex::new(file))
        }
    };
    let (export, refused) = match Export::start(environment, proxies(environment)) {
        Ok(export) => (export, None),
        Err(refused) => (None, Some(refused)),
    };
    let log = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .with(export.as_ref().map(Export::layer))
        .init();
    // A setting that is meant for many programs stops none.
    if let Some(refused) = refused {
        warn!("{refused}");
    }
    Ok(export)
}

/// The configuration in force, with its warnings said.
fn load(global: &Global, environment: &Environment, flags: Flags) -> anyhow::Result<Config> {
    let sources = Sources {
        file: global.config.clone(),
        environment: environment.clone(),
        flags,
    };
    let config = Config::load(&sources).map_err(|error| UsageError(error.to_string()))?;
    for warning in &config.warnings {
        say(&format!("warning: {warning}"));
    }
    Ok(config)
}

/// Time that file operations may take when all else has ended: one that hangs must not keep the process.
const LAST_WORK: std::time::Duration = std::time::Duration::from_secs(2);

/// Does what a verb does beside others.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORK);
    done
}
