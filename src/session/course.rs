//! A cell on its way: sent, its output passed on, told to end, and waited for.

use std::time::{Duration, Instant};

use super::approval::Clock;
use super::cell::Cell;
use super::handle::Starting;
use crate::kernel::{Agent, AgentError, KernelInfo};
use crate::link::{CellDone, RunCell};
use crate::output::{Collector, Stream};

/// Time beyond a cell's limit after which its supervisor counts as lost: the grace, a kill walk, and
/// some for a loaded machine.
const SUPERVISOR_LATE: Duration = Duration::from_secs(30);
/// How long a cell elsewhere that is told to end may take for that, its grace and the link included; and one that is
/// killed.
const STOP_LATE: Duration = Duration::from_secs(15);
const KILL_LATE: Duration = Duration::from_secs(5);
/// Where nothing is waited for yet.
const FAR_OFF: Duration = Duration::from_secs(365 * 24 * 3600);

/// Who runs a cell, and within what limits.
pub(super) struct Course<'a> {
    pub(super) agent: &'a Agent,
    pub(super) cell: &'a Cell,
    pub(super) timeout: Duration,
    pub(super) is_here: bool,
    /// That of the cell, which may stand still.
    pub(super) clock: &'a Clock,
    pub(super) reconnect_timeout: Duration,
}

/// What came of it.
pub(super) struct Ran {
    /// When the script began, as far as it did.
    pub(super) began: Instant,
    /// The kernel that was made for this cell, and what it took.
    pub(super) kernel: Option<(KernelInfo, Duration)>,
    pub(super) done: Result<CellDone, Undone>,
}

/// Why there is no record of the cell.
pub(super) enum Undone {
    /// Its kernel did not start, and to find that out took so long.
    NoKernel(AgentError, Duration),
    /// Nobody answers.
    Lost(String),
}

impl Course<'_> {
    /// Runs a cell to its end, passing on its output and the caller's wish to stop. One for a kernel that is starting
    /// is sent behind that.
    pub(super) async fn run(&self, run: RunCell, starting: Option<Starting>, collector: &mut Collector) -> Ran {
        let number = run.cell;
        let sink = self.cell.sink.clone();
        let running = self.agent.run_cell(run, |stderr, data| {
            let stream = if stderr { Stream::Stderr } else { Stream::Stdout };
            let text = collector.push(stream, data);
            if let Some(sink) = &sink
                && !text.is_empty()
            {
                sink.write(stream, &text);
            }
        });
        tokio::pin!(running);
        let mut ran = Ran {
            began: Instant::now(),
            kernel: None,
            done: Err(Undone::Lost(String::new())),
        };
        let mut failed = None;
        let mut starting = starting;
        let late = tokio::time::sleep(FAR_OFF);
        tokio::pin!(late);
        if starting.is_none() {
            self.begin(late.as_mut());
        }
        let (mut asked, mut at_once) = (false, false);
        // Who wants it to end does not wait for a link that is down.
        let unanswered = tokio::time::sleep(FAR_OFF);
        tokio::pin!(unanswered);
        // A link that is lost may be made again, and the record of a cell that has ended long ago arrive then: also after
        // the broker itself was stopped for longer than the whole of this limit.
        let mut chances = if self.is_here { 0 } else { 2 };
        let mut credited = Duration::ZERO;
        ran.done = loop {
            let kernel = async {
                match &mut starting {
                    Some(starting) => starting.kernel.ready().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = kernel => {
                    let since = starting.take().map_or(ran.began, |starting| starting.since);
                    match ready {
                        Ok(info) => {
                            ran.began = Instant::now();
                            ran.kernel = Some((info, since.elapsed()));
                            self.begin(late.as_mut());
                        }
                        // The record of the cell says so too, and comes next.
                        Err(error @ AgentError::KernelStart(_)) => {
                            failed = Some((error, since.elapsed()));
                            late.as_mut().reset(tokio::time::Instant::now() + SUPERVISOR_LATE);
                        }
                        Err(error) => break Err(Undone::NoKernel(error, since.elapsed())),
                    }
                }
                done = &mut running => {
                    // Both may have come at once.
                    if let Some(mut starting) = starting.take() {
                        match starting.kernel.ready().await {
                            Ok(info) => ran.kernel = Some((info, starting.since.elapsed())),
                            Err(error) => failed = Some((error, starting.since.elapsed())),
                        }
                    }
                    break match (done, failed) {
                        (Ok(done), Some((error, took))) if done.why != "interrupted" => Err(Undone::NoKernel(error, took)),
                        (Err(_), Some((error, took))) => Err(Undone::NoKernel(error, took)),
                        (done, _) => done.map_err(|error| Undone::Lost(error.to_string())),
                    };
                }
                () = self.cell.cancel.cancelled(), if !asked => {
                    asked = true;
                    self.agent.stop_cell(number, false);
                    unanswered.as_mut().reset(tokio::time::Instant::now() + STOP_LATE);
                }
                () = self.cell.cancel.cancelled_at_once(), if !at_once => {
                    at_once = true;
                    self.agent.stop_cell(number, true);
                    unanswered.as_mut().reset(tokio::time::Instant::now() + KILL_LATE);
                }
                () = &mut unanswered, if asked && !self.is_here => {
                    break Err(Undone::Lost("the target did not answer when the cell was to end".to_owned()));
                }
                () = &mut late => {
                    // What its clock stood still is not late.
                    let held = self.clock.held();
                    if held > credited {
                        late.as_mut().reset(tokio::time::Instant::now() + (held - credited));
                        credited = held;
                        continue;
                    }
                    if chances == 0 {
                        break Err(Undone::Lost("the supervisor of the session did not answer".to_owned()));
                    }
                    chances -= 1;
                    late.as_mut()
                        .reset(tokio::time::Instant::now() + SUPERVISOR_LATE + self.reconnect_timeout);
                }
            }
        };
        ran
    }

    /// The script begins.
    fn begin(&self, late: std::pin::Pin<&mut tokio::time::Sleep>) {
        if let Some(sink) = &self.cell.sink {
            sink.started();
        }
        late.reset(tokio::time::Instant::now() + self.timeout + SUPERVISOR_LATE);
    }
}
