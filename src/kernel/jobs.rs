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

/// A running job. Dropping it stops the job.
pub struct JobHandle {
    link: Arc<dyn Link>,
    number: u64,
    events: mpsc::Receiver<JobEvent>,
    ended: bool,
}

impl JobHandle {
    pub(super) fn new(link: Arc<dyn Link>, number: u64, events: mpsc::Receiver<JobEvent>) -> Self {
        Self {
            link,
            number,
            events,
            ended: false,
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the supervisor ends first.
    pub async fn wait(mut self) -> Result<JobResult, AgentError> {
        let mut output = Vec::new();
        while let Some(event) = self.events.recv().await {
            match event {
                JobEvent::Output(data) => output.extend_from_slice(&data),
                JobEvent::Done(done) => {
                    self.ended = true;
                    return Ok(finish(output, *done));
                }
            }
        }
        self.ended = true;
        Err(LinkError::Gone.into())
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

impl Drop for JobHandle {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.link.send(LinkCommand::StopJob(self.number));
        }
    }
}
