//! `talaria conformance`: the cases of the contract, run on a target.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use talaria_broker::config::Flags;
use talaria_broker::conformance::{AREAS, Case, Plan, Reached, Summary, Verdict, VerdictKind, run as check};
use talaria_broker::environment::Environment;
use talaria_broker::session::SessionOptions;
use talaria_broker::target::TargetKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::args::{Conformance, Global};
use super::{UsageError, exit, say};

/// A case does not hold.
const FAILED: u8 = 1;
/// It was interrupted.
const INTERRUPTED: u8 = 130;

pub(super) fn run(verb: &Conformance, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let cases = chosen(&verb.filters)?;
    if verb.list {
        let names: String = cases
            .iter()
            .map(|(area, case)| format!("{area}::{}\n", case.name))
            .collect();
        super::print(&names)?;
        return Ok(0);
    }
    let flags = Flags {
        target: verb.target.clone(),
        transport: verb.transport,
        ..Flags::default()
    };
    let config = super::load(global, environment, flags)?;
    let resolved = match config.resolve(&config.target) {
        Ok(resolved) => resolved,
        Err(error) => {
            say(&format!("error: {error}"));
            return Ok(exit::BROKER);
        }
    };
    let mut options =
        SessionOptions::from_config(&config, &resolved, environment).map_err(|error| UsageError(error.to_string()))?;
    // Thousands of calls that no agent made would push those of agents out of the log.
    options.audit = None;
    let is_made = matches!(
        resolved.spec.kind(),
        TargetKind::Docker { .. } | TargetKind::Modal { .. }
    );
    let plan = Plan {
        cases,
        jobs: verb.jobs.map_or(if is_made { 2 } else { 4 }, usize::from),
        limit: verb.limit,
        stop: CancellationToken::new(),
    };
    super::block_on(work(options, plan, Page::new(verb.json)))
}

/// The cases whose names hold one of the filters; all without any.
fn chosen(filters: &[String]) -> Result<Vec<(&'static str, &'static Case)>, UsageError> {
    let all = AREAS
        .iter()
        .flat_map(|area| area.cases.iter().map(move |case| (area.name, case)));
    let all: Vec<(&'static str, &'static Case)> = all.collect();
    let holds =
        |filter: &String, (area, case): &(&str, &Case)| format!("{area}::{}", case.name).contains(filter.as_str());
    if let Some(filter) = filters.iter().find(|filter| !all.iter().any(|one| holds(filter, one))) {
        let areas: Vec<&str> = AREAS.iter().map(|area| area.name).collect();
        return Err(UsageError(format!(
            "no case has `{filter}` in its name; areas are {}, and --list prints all names",
            areas.join(", ")
        )));
    }
    let is_chosen =
        |one: &(&'static str, &'static Case)| filters.is_empty() || filters.iter().any(|filter| holds(filter, one));
    Ok(all.into_iter().filter(is_chosen).collect())
}

async fn work(options: SessionOptions, plan: Plan, page: Page) -> anyhow::Result<u8> {
    let began = Instant::now();
    let target = options.target.clone();
    let mut ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<_>, _>>()?;
    let stop = plan.stop.clone();
    let told = |verdict: &Verdict| {
        if !page.tell(verdict) {
            stop.cancel();
        }
    };
    let reached = |reached: &Reached| page.begin(&target, plan.cases.len(), reached);
    let checking = check(options, &plan, &reached, &told);
    tokio::pin!(checking);
    let mut is_interrupted = false;
    let summary = loop {
        tokio::select! {
            summary = &mut checking => break summary,
            () = any(&mut ends) => {
                if is_interrupted {
                    say("what was made on the target is left to its lease there; `talaria gc` removes it sooner");
                    return Ok(INTERRUPTED);
                }
                is_interrupted = true;
                say("interrupted: sessions are being closed; once more ends at once");
                plan.stop.cancel();
            }
        }
    };
    page.written()?;
    let summary = match summary {
        Ok(summary) => summary,
        Err(error) => {
            say(&format!("error: {target} cannot be checked, nothing ran: {error}"));
            if !error.contains("doctor") {
                say(&format!("hint: `talaria doctor {target}` says more"));
            }
            return Ok(exit::BROKER);
        }
    };
    for unclosed in &summary.unclosed {
        say(&format!("error: {unclosed}; `talaria gc` removes what was left"));
    }
    page.end(&summary, began)?;
    Ok(match summary {
        _ if is_interrupted => INTERRUPTED,
        Summary {
            failed: 0,
            ref unclosed,
            ..
        } if unclosed.is_empty() => 0,
        _ => FAILED,
    })
}

/// Waits for one of the signals.
async fn any(signals: &mut [tokio::signal::unix::Signal]) {
    std::future::poll_fn(|context| {
        let mut came = signals.iter_mut().map(|signal| signal.poll_recv(context).is_ready());
        if came.any(|came| came) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// What is printed.
struct Page {
    json: bool,
    /// Why a line could not be written.
    unwritten: Mutex<Option<anyhow::Error>>,
}

impl Page {
    fn new(json: bool) -> Self {
        Self {
            json,
            unwritten: Mutex::new(None),
        }
    }

    /// Prints a line; whether it could be.
    fn line(&self, text: &str) -> bool {
        match super::print(&format!("{text}\n")) {
            Ok(()) => true,
            Err(error) => {
                *self.unwritten.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                false
            }
        }
    }

    fn written(&self) -> anyhow::Result<()> {
        match self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn begin(&self, target: &str, cases: usize, reached: &Reached) {
        if self.json {
            return;
        }
        let kernel = reached.kernel.as_ref();
        let python = kernel.map_or("an unknown Python", |kernel| kernel.python.as_str());
        let transport = kernel.map_or("unknown", |kernel| kernel.transport.as_str());
        self.line(&format!(
            "{target}: {python}, transport {transport}, first cell after {:.1} s; {}",
            reached.seconds,
            plural(cases, "case")
        ));
        if let Some(notice) = &reached.notice {
            self.line(&format!("notice: {notice}"));
        }
    }

    /// Prints what a case came to; whether it could be.
    fn tell(&self, verdict: &Verdict) -> bool {
        let name = format!("{}::{}", verdict.area, verdict.name);
        let (word, told) = match &verdict.kind {
            VerdictKind::Holds => ("ok", None),
            VerdictKind::Failed(told) => ("FAILED", Some(told)),
            VerdictKind::Skipped(why) => ("skipped", Some(why)),
        };
        if self.json {
            let mut object = json!({"case": name, "status": word.to_lowercase(), "seconds": rounded(verdict.seconds)});
            if let Some(told) = told {
                object["detail"] = Value::String(told.clone());
            }
            return self.line(&object.to_string());
        }
        let told = told.map_or_else(String::new, |told| format!(": {}", told.replace('\n', "\n         ")));
        self.line(&format!("{word:<8} {name} ({:.2} s){told}", verdict.seconds))
    }

    fn end(&self, summary: &Summary, began: Instant) -> anyhow::Result<()> {
        let seconds = began.elapsed().as_secs_f64();
        let total = summary.held + summary.failed + summary.skipped + summary.left;
        if self.json {
            self.line(
                &json!({"summary": {
                    "cases": total, "ok": summary.held, "failed": summary.failed, "skipped": summary.skipped,
                    "left": summary.left, "sessions": summary.sessions, "seconds": rounded(seconds),
                }})
                .to_string(),
            );
        } else {
            let left = match summary.left {
                0 => String::new(),
                left => format!(", {left} not run"),
            };
            self.line(&format!(
                "{}: {} ok, {} FAILED, {} skipped{left}; {} opened, {seconds:.1} s",
                plural(total, "case"),
                summary.held,
                summary.failed,
                summary.skipped,
                plural(summary.sessions, "session"),
            ));
        }
        self.written()
    }
}

/// So many of them, in words.
fn plural(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// To milliseconds.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
