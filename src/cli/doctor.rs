//! `talaria doctor`: what works here, what does not, and the fix.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use talaria_broker::backends::docker::EngineSources;
use talaria_broker::broker::Broker;
use talaria_broker::config::Flags;
use talaria_broker::environment::Environment;
use talaria_broker::outcome::{Outcome, Status};
use talaria_broker::session::{Cell, SessionOptions, explain_proxies, web_options};
use talaria_broker::target::TargetKind;
use talaria_broker::web::{Endpoint, NO_PROVIDER, Reader, WebOptions};

use super::args::{Doctor, Global};
use super::stream::Terminal;
use super::{UsageError, exit, host};

/// Rounds of which the middle one is reported.
const ROUNDS: usize = 21;

/// Measures calls inside one cell, so that only the call is timed.
const CALLS: &str = "
import time, hermes_tools
def once():
    began = time.perf_counter()
    hermes_tools._call('doctor_probe', {})
    return time.perf_counter() - began
once()
print(sorted(once() for _ in range(101))[50])
";

/// Of a tool.
const DISABLED: &str = "disabled (tools.disabled)";

pub(super) fn run(verb: &Doctor, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let mut report = Report::default();
    report.line("talaria", env!("CARGO_PKG_VERSION"));
    let flags = Flags {
        target: verb.target.clone(),
        ..Flags::default()
    };
    let config = super::load(global, environment, flags)?;
    match &config.file {
        Some(file) => report.line("configuration", &file.display().to_string()),
        None => report.line(
            "configuration",
            "none found; defaults are in force (talaria config --template prints a file)",
        ),
    }
    let resolved = match config.resolve(&config.target) {
        Ok(resolved) => resolved,
        Err(error) => {
            report.fault("target", &error.to_string());
            return report.print();
        }
    };
    let options =
        SessionOptions::from_config(&config, &resolved, environment).map_err(|error| UsageError(error.to_string()))?;
    let spec = resolved.spec.to_string();
    report.line(
        "target",
        &if spec == options.target {
            spec
        } else {
            format!("{} = {spec}", options.target)
        },
    );
    if let Some(cwd) = &options.cwd {
        report.line("working directory", &cwd.display().to_string());
    }
    web(
        &mut report,
        &web_options(&config.web, environment),
        &options.disabled_tools,
    );
    for row in explain_proxies(environment) {
        let value = row.value.unwrap_or_default();
        report.line("web tools", &format!("{} is {value} ({})", row.key, row.origin));
    }
    withheld(&mut report, &options, *resolved.spec.kind() == TargetKind::Local);
    super::block_on(async {
        let is_container = matches!(
            resolved.spec.kind(),
            TargetKind::Docker { .. } | TargetKind::Container { .. } | TargetKind::Compose { .. }
        );
        let is_host = matches!(resolved.spec.kind(), TargetKind::Ssh { .. });
        let is_there = match () {
            () if is_container => engine(&mut report, &options.target, environment).await,
            () if is_host => host::login(&mut report, &options).await,
            () => true,
        };
        if is_there {
            measure(&mut report, options, is_host).await;
        }
        Ok(())
    })?;
    report.print()
}

/// Which engine has the containers; whether it can be used.
async fn engine(report: &mut Report, target: &str, environment: &Environment) -> bool {
    match EngineSources::of(environment).connect(target).await {
        Ok(engine) => {
            let text = format!("{}, API {}, at {}", engine.name, engine.api, engine.address);
            report.line("engine", &text);
            true
        }
        Err(error) => {
            report.fault("engine", &error.to_string());
            false
        }
    }
}

/// Who answers the web tools. That nobody answers searches is no fault as long as nobody asked for one.
fn web(report: &mut Report, options: &WebOptions, disabled: &[String]) {
    let is_off = |tool: &str| disabled.iter().any(|name| name == tool);
    match &options.search {
        _ if is_off("web_search") => report.off("web_search", DISABLED),
        Ok(search) => report.line("web_search", &provider(search.provider.as_str(), &search.endpoint)),
        Err(why) if why == NO_PROVIDER => report.off("web_search", why),
        Err(why) => report.fault("web_search", why),
    }
    match &options.extract.reader {
        _ if is_off("web_extract") => report.off("web_extract", DISABLED),
        Ok(Reader::Provider(name, endpoint)) => report.line("web_extract", &provider(name.as_str(), endpoint)),
        Ok(Reader::Builtin) => {
            let allowed: Vec<String> = options.extract.allow_private.iter().map(ToString::to_string).collect();
            let allowed = if allowed.is_empty() {
                "public addresses only".to_owned()
            } else {
                format!("public addresses, and {}", allowed.join(", "))
            };
            report.line("web_extract", &format!("built in; {allowed}"));
        }
        Err(why) => report.fault("web_extract", why),
    }
}

fn provider(name: &str, endpoint: &Endpoint) -> String {
    match &endpoint.key {
        Some(key) => format!(
            "set to {name} at {}, with the key in {}; not asked now",
            endpoint.url, key.variable
        ),
        None => format!("set to {name} at {}, without a key; not asked now", endpoint.url),
    }
}

fn withheld(report: &mut Report, options: &SessionOptions, is_here: bool) {
    let built = options.environment.cell_environment(&options.passes);
    for refusal in &built.refused {
        report.fault("environment", refusal);
    }
    if !is_here {
        let named = options.passes.env_passthrough.join(", ");
        let named = if named.is_empty() { "none" } else { &named };
        report.line("variables of the broker that are passed", named);
        return;
    }
    let mut text = String::new();
    for one in &built.withheld {
        let _ = write!(text, "\n    {} ({})", one.name.to_string_lossy(), one.reason);
    }
    let text = if text.is_empty() { "none".to_owned() } else { text };
    report.line("variables that scripts do not get", &text);
}

async fn measure(report: &mut Report, mut options: SessionOptions, is_host: bool) {
    // Its calls are those of whoever runs it.
    options.policy = Arc::default();
    let has_terminal = !options.disabled_tools.iter().any(|name| name == "terminal");
    let broker = Broker::new(1);
    let session = match broker.open(options) {
        Ok(session) => session,
        Err(error) => return report.fault("session", &error.to_string()),
    };
    let began = Instant::now();
    let mut cell = Cell::new("pass");
    // It may take as long as an image is fetched, or a service waited for.
    let waiting = Terminal::new(cell.cancel.clone(), true);
    cell.sink = Some(waiting.clone());
    let animation = waiting.animate();
    let first = session.execute(cell).await;
    animation.abort();
    waiting.clear();
    let cold = began.elapsed();
    if !passed(report, "first cell", &first) {
        broker.close().await;
        return;
    }
    if !is_host {
        for (what, found) in session.about_target().await {
            report.line(what, &found);
        }
    }
    if let Some(kernel) = &first.kernel {
        report.line("python", &kernel.python);
        report.line("transport", &kernel.transport);
    }
    if let Some(notice) = &first.notice {
        report.fault("kernel", notice);
    }
    if let Some(warning) = session.ends_at_logout().await {
        report.warning("connection", &format!("a cell ends with it: {warning}"));
    }
    report.line("first cell from nothing", &milliseconds(cold));
    let phases = [
        ("connect", first.phases.connect),
        ("pull", first.phases.pull),
        ("start", first.phases.start),
    ];
    for (phase, seconds) in phases {
        if let Some(seconds) = seconds {
            report.line(
                &format!("  of it, {phase}"),
                &milliseconds(Duration::from_secs_f64(seconds)),
            );
        }
    }
    if is_host {
        host::survey(report, &session).await;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        session.execute(Cell::new("pass")).await;
        rounds.push(began.elapsed());
    }
    rounds.sort();
    report.line("cell round trip", &milliseconds(rounds[ROUNDS / 2]));
    let calls = session.execute(Cell::new(CALLS)).await;
    if passed(report, "tool call", &calls)
        && let Ok(seconds) = calls.output.trim().parse::<f64>()
    {
        report.line(
            "tool call round trip (refused at the gate)",
            &milliseconds(Duration::from_secs_f64(seconds)),
        );
    }
    if !has_terminal {
        report.off("terminal", DISABLED);
        broker.close().await;
        return;
    }
    let command = session
        .execute(Cell::new(
            "from hermes_tools import terminal\nr = terminal('true')\nassert r['exit_code'] == 0, r",
        ))
        .await;
    if passed(report, "terminal", &command) {
        report.line("terminal", "works");
    }
    broker.close().await;
}

pub(super) fn passed(report: &mut Report, what: &str, outcome: &Outcome) -> bool {
    if outcome.status == Status::Success {
        return true;
    }
    report.fault(what, outcome.error.as_deref().unwrap_or("failed"));
    false
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

#[derive(Default)]
pub(super) struct Report {
    pub(super) text: String,
    faults: usize,
}

impl Report {
    pub(super) fn line(&mut self, what: &str, found: &str) {
        let _ = writeln!(self.text, "ok    {what}: {found}");
    }

    /// What nobody asked for, so that it is no fault, and what to set to have it.
    fn off(&mut self, what: &str, found: &str) {
        let _ = writeln!(self.text, "off   {what}: {found}");
    }

    /// What works, but not as it should.
    fn warning(&mut self, what: &str, found: &str) {
        let _ = writeln!(self.text, "warn  {what}: {found}");
    }

    pub(super) fn fault(&mut self, what: &str, found: &str) {
        self.faults += 1;
        let _ = writeln!(self.text, "FAIL  {what}: {found}");
    }

    fn print(&self) -> anyhow::Result<u8> {
        super::print(&self.text)?;
        Ok(if self.faults == 0 { 0 } else { exit::BROKER })
    }
}
