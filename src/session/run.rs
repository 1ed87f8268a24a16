//! The course of one cell, from its authority to its outcome.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::approval::{Approvals, Clock};
use super::authority::{Answers, Authority, Replies};
use super::cell::Cell;
use super::course::{Course, Ran, Undone};
use super::handle::{Inner, Prepared, State, Unbegun, phase};
use super::hints;
use super::journal::CellEntry;
use super::live::{Live, Offer};
use super::options::spill_folder;
use super::report::{self, Facts, Verdict};
use super::workspace::FOLDER_CLOSED;
use crate::kernel::AgentError;
use crate::link::message::CellResult;
use crate::link::{CellDone, RunCell};
use crate::outcome::{KernelMode, KernelReport, Outcome, Phases, Status};
use crate::output::{Collected, Collector, Masker, Stream, clean_text};
use crate::place::Place;
use crate::tools::{CallPath, stub_source};

/// Bytes of stderr that are carried; an outcome shows far fewer.
const STDERR_CARRIED: u64 = 1 << 20;
impl Inner {
    pub(super) async fn run(
        &self,
        state: &mut State,
        cell: &Cell,
        entry: &CellEntry,
        mut prepared: Prepared,
        phases: &mut Phases,
    ) -> Result<Outcome, Unbegun> {
        let masker = state.masker.clone();
        let Some(live) = &mut state.live else {
            return Ok(report::refused(&self.options.target, *phases, "the session has ended"));
        };
        if let Err(refusal) = entry.announce(&masker).await {
            return Ok(report::refused(&self.options.target, *phases, refusal));
        }
        let limits = self.options.limits.with(&cell.limits);
        let specs = self.allowed(cell);
        let agent = live.agent.clone();
        let offer = Offer::new(self.host(cell), &specs);
        // Made only where it differs from what the kernel has.
        let stub = match &live.kernel {
            Some(kernel) if kernel.offer == offer => None,
            _ => {
                let link = agent.link();
                Some(stub_source(&specs, link.token(), CallPath::of(&link.variables())))
            }
        };
        let number = agent.next_cell();
        let approvals = self.approvals(cell, Clock::new(number, &agent));
        let run = RunCell {
            cell: number,
            timeout: limits.timeout.as_secs_f64(),
            held: approvals
                .most_held(specs.iter().map(|spec| spec.name.as_str()))
                .as_secs_f64(),
            stdout_cap: limits.max_spill_bytes.max(limits.max_stdout_bytes as u64),
            stderr_cap: STDERR_CARRIED.max(limits.max_stderr_bytes as u64),
            folder: match &state.place {
                Some(place) if !place.is_here() => self
                    .workspace
                    .working_directory()
                    .unwrap_or_default()
                    .into_os_string()
                    .into_vec(),
                _ => Vec::new(),
            },
            name: cell.file_name(number),
            arguments: cell.arguments.clone(),
            from_file: matches!(cell.source, super::CellSource::File(_)),
            stub: stub.clone(),
            source: cell.source.bytes().to_vec(),
            standalone: live.kernel.is_none(),
        };
        if live.kernel.is_none() {
            let folder = self.workspace.working_directory().unwrap_or_default();
            let start = live.start_of_kernel(&folder, &state.built, stub.as_deref().unwrap_or_default());
            if let Err(error) = agent.prepare_standalone(start) {
                return Ok(report::refused(&self.options.target, *phases, error.to_string()));
            }
        }
        if let Err(error) = agent.link().open_for_calls().await {
            // Its folder is another's now: a session with another name takes over.
            self.abandon(state).await;
            state.lost = Some(error.to_string());
            let outcome = report::refused(&self.options.target, *phases, error.to_string());
            return Err(Unbegun::KernelGone(Box::new(outcome)));
        }
        let authority = Arc::new(Authority {
            cell: number,
            entry: entry.number,
            span: tracing::Span::current(),
            host: self.host(cell).clone(),
            allowed: specs.iter().map(|spec| spec.name.clone()).collect(),
            budget: limits.max_tool_calls,
            made: AtomicU64::new(0),
            cancel: CancellationToken::new(),
            sink: cell.sink.clone(),
            answers: Answers::default(),
            replies: Replies::default(),
            approvals,
        });
        let spill = spill_folder(&self.options.environment);
        let mut collector = Collector::new((&limits).into(), spill, masker.clone());
        self.gate.open(authority.clone());
        let links = agent.link().relinks().count;
        let is_here = state.place.as_ref().is_some_and(Place::is_here);
        let course = Course {
            agent: &agent,
            cell,
            timeout: limits.timeout,
            is_here,
            clock: &authority.approvals.clock,
            reconnect_timeout: self.options.reconnect_timeout,
        };
        let mut starting = prepared.starting.take();
        let lost = starting.as_mut().and_then(|starting| starting.lost.take());
        let is_new = starting.is_some();
        let Ran { began, kernel, done } = course.run(run, starting, &mut collector).await;
        self.gate.shut().await;
        let has_begun = kernel.is_some() || !is_new;
        if let Some((info, took)) = kernel {
            phases.start = phase(took);
            state.standalone = None;
            if let Some(kernel) = &mut live.kernel {
                kernel.python = info.python;
            }
        }
        let done = match done {
            Err(Undone::NoKernel(error, took)) => {
                state.lost = lost;
                return Err(match &error {
                    AgentError::KernelStart(reason) if reason.contains(FOLDER_CLOSED) => {
                        self.forget_kernel(live);
                        Unbegun::FolderGone
                    }
                    _ => Unbegun::NoKernel(error, took),
                });
            }
            Ok(done) if !has_begun && done.why == "interrupted" => {
                self.forget_kernel(live);
                state.lost = lost;
                return Ok(report::cancelled_early(
                    &self.options.target,
                    *phases,
                    &cell.cancel.reason(),
                ));
            }
            Ok(done) => Ok(done),
            Err(Undone::Lost(reason)) => Err(reason),
        };
        let relinks = agent.link().relinks();
        // Where it was not made again in the end, the error says what became of it.
        if relinks.count > links && done.is_ok() {
            prepared.notices.push(format!(
                "the link to the target was lost and made again while the cell ran ({}); nothing of it was lost",
                relinks.reason
            ));
        }
        prepared
            .notices
            .extend(state.target.as_ref().and_then(|target| target.notice()));

        if let Ok(done) = &done
            && done.why == "unbegun"
            && done.detail.contains(FOLDER_CLOSED)
        {
            return Err(Unbegun::FolderGone);
        }
        if let Some(kernel) = &mut live.kernel {
            kernel.offer = offer;
            kernel.count += 1;
        }
        let keeps_state = live.kernel.is_some();
        let count = live.kernel.as_ref().map_or(1, |kernel| kernel.count);
        let python = match &live.kernel {
            Some(kernel) => kernel.python.clone(),
            None => live.python.display().to_string(),
        };
        let (verdict, done) = match done {
            Ok(mut done) => {
                self.skipped(cell, &mut collector, &mut done);
                (
                    report::judge(&done, limits.timeout, &cell.cancel.reason(), keeps_state),
                    Some(done),
                )
            }
            Err(reason) if cell.cancel.is_cancelled() && !is_here => {
                (report::left_behind(&reason, &cell.cancel.reason(), keeps_state), None)
            }
            Err(reason) => (report::supervisor_lost(&reason, is_here, keeps_state), None),
        };
        let collected = collector.finish();
        if let Some(sink) = &cell.sink {
            let (stdout, stderr) = &collected.live_rest;
            for (stream, text) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
                if !text.is_empty() {
                    sink.write(stream, text);
                }
            }
        }
        let result = done.as_ref().and_then(|done| done.result.as_ref());
        let hint = match verdict.status {
            Status::Timeout => Some(hints::OUT_OF_TIME.to_owned()),
            _ => result.and_then(|result| self.hint(cell, result, &authority, &python, &collected, &masker)),
        };
        let facts = Facts {
            target: self.options.target.clone(),
            kernel: KernelReport {
                mode: if live.kernel.is_some() {
                    KernelMode::Session
                } else {
                    KernelMode::OneShot
                },
                reused: count > 1,
                execution_count: count,
                state_lost: verdict.kernel_ended,
                python: format!("{python} ({})", live.version),
                transport: agent.link().transport().to_owned(),
            },
            phases: *phases,
            seconds: done.as_ref().map_or_else(
                || {
                    began
                        .elapsed()
                        .saturating_sub(authority.approvals.clock.held())
                        .as_secs_f64()
                },
                |done| done.seconds,
            ),
            tool_calls: authority.made.load(Ordering::Acquire),
            notice: (!prepared.notices.is_empty()).then(|| prepared.notices.join(" · ")),
            hint,
        };
        let unbegun = done.as_ref().is_some_and(|done| done.why == "unbegun");
        self.after(state, &verdict, done.is_some()).await;
        if unbegun && let Some(end) = agent.take_lost() {
            state.lost = Some(format!("the kernel ended between cells: {}", end.reason));
        }
        let outcome = report::outcome(verdict, collected, &masker, facts);
        if unbegun {
            Err(Unbegun::KernelGone(Box::new(outcome)))
        } else {
            Ok(outcome)
        }
    }

    fn approvals(&self, cell: &Cell, clock: Clock) -> Approvals {
        Approvals {
            policy: cell.policy.clone().unwrap_or_else(|| self.options.policy.clone()),
            approver: cell.approver.clone().or_else(|| self.options.approver.clone()),
            grants: self.grants.clone(),
            clock,
            target: self.options.target.clone(),
            interrupt: cell.cancel.clone(),
            turn: tokio::sync::Mutex::default(),
            unanswered: AtomicBool::new(false),
        }
    }

    /// There is no kernel any more.
    fn forget_kernel(&self, live: &mut Live) {
        live.kernel = None;
        self.has_kernel.store(false, Ordering::Release);
    }

    /// Accounts for output that the supervisor did not send.
    fn skipped(&self, cell: &Cell, collector: &mut Collector, done: &mut CellDone) {
        let parts = [
            (Stream::Stdout, &done.stdout_skipped),
            (Stream::Stderr, &done.stderr_skipped),
        ];
        for (stream, (bytes, tail)) in parts {
            if *bytes > 0 {
                let text = collector.skip(stream, bytes.saturating_sub(tail.len() as u64), tail);
                if let Some(sink) = &cell.sink {
                    sink.write(stream, &text);
                }
            }
        }
    }

    fn hint(
        &self,
        cell: &Cell,
        result: &CellResult,
        authority: &Authority,
        python: &str,
        collected: &Collected,
        masker: &Masker,
    ) -> Option<String> {
        let seen = authority.answers.seen();
        let clean = |error: &str| clean_text(error.as_bytes(), masker);
        let failed = seen.failed.as_ref().map(|(tool, error)| (tool.as_str(), clean(error)));
        let in_vain = seen.calls.iter().filter_map(|(tool, calls)| {
            // Of what is left out, nobody knows whether it told of them.
            let (count, error) = calls.all_failed().filter(|_| collected.truncation.is_none())?;
            Some((tool.as_str(), count, clean(error)))
        });
        let withheld: Vec<String> = self
            .host(cell)
            .tools()
            .iter()
            .map(|spec| spec.name.clone())
            .filter(|name| !authority.allowed.contains(name))
            .collect();
        hints::hint(&hints::Facts {
            result,
            source: &cell.source.lossy(),
            python,
            specs: self.host(cell).tools(),
            allowed: &authority.allowed,
            withheld: &withheld,
            failed: failed.as_ref().map(|(tool, error)| (*tool, error.as_str())),
            in_vain: in_vain.collect(),
            keys: &seen.keys,
            printed: collected.stdout_bytes_total > 0,
            shown: [&collected.stdout, &collected.stderr],
        })
    }

    /// Remembers what a cell's end means for the next one.
    async fn after(&self, state: &mut State, verdict: &Verdict, supervisor_answered: bool) {
        if verdict.kernel_ended {
            if let Some(live) = &mut state.live {
                self.forget_kernel(live);
            }
            state.lost = Some(verdict.lost_because.clone());
        }
        if !supervisor_answered {
            self.abandon(state).await;
        }
    }
}
