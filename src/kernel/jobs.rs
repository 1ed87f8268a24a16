//! A job in flight, and what it came to.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::agent::{AgentError, JobEvent};
use super::ending::Ending;
use crate::link::{JobDone, Link, LinkCommand, LinkError};

/// How a job ended.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// What it wrote, stdout and stderr as one.
    pub output: Vec<u8>,
    /// Where bytes are missing from it, and how many.
    pub gap: Option<(usize, u64)>,
    /// How its shell ended.
    pub ending: Ending,
    /// What it wrote to its state file.
    pub state: Bytes,
}

/// What has been begun under a number. Dropping it before its end stops it.
pub(super) struct Running {
    link: Arc<dyn Link>,
    number: u64,
    events: mpsc::Receiver<JobEvent>,
    ended: bool,
}

impl Running {
    pub(super) fn new(link: Arc<dyn Link>, number: u64, events: mpsc::Receiver<JobEvent>) -> Self {
        Self {
            link,
            number,
            events,
            ended: false,
        }
    }

    /// What is heard of it next.
    pub(super) async fn next(&mut self) -> Result<JobEvent, AgentError> {
        let event = self.events.recv().await;
        self.ended |= event.is_none();
        event.ok_or_else(|| LinkError::Gone.into())
    }

    /// There is nothing left to stop.
    pub(super) fn ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.link.send(LinkCommand::StopJob(self.number));
        }
    }
}

/// A running job. Dropping it stops the job.
pub struct JobHandle(Running);

impl JobHandle {
    pub(super) fn new(running: Running) -> Self {
        Self(running)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the supervisor ends first.
    pub async fn wait(mut self) -> Result<JobResult, AgentError> {
        let mut output = Vec::new();
        loop {
            match self.0.next().await? {
                JobEvent::Output(data) => output.extend_from_slice(&data),
                JobEvent::Done(done) => {
                    self.0.ended();
                    return Ok(finish(output, *done));
                }
                JobEvent::Verb(_) => {}
            }
        }
    }
}

fn finish(mut output: Vec<u8>, done: JobDone) -> JobResult {
    let (skipped, tail) = &done.skipped;
    let missing = skipped.saturating_sub(tail.len() as u64);
    let gap = (missing > 0).then_some((output.len(), missing));
    output.extend_from_slice(tail);
    JobResult {
        output,
        gap,
        ending: Ending::of_job(&done),
        state: done.state,
    }
}
