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
    /// Bytes of its output that were not handed over, and the last of them.
    pub skipped: (u64, Bytes),
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

    /// Waits for its end. What it writes, stdout and stderr as one, goes to `output` as it comes.
    ///
    /// # Errors
    /// When the supervisor ends first.
    pub async fn wait(mut self, mut output: impl FnMut(&[u8])) -> Result<JobResult, AgentError> {
        loop {
            match self.0.next().await? {
                JobEvent::Output(data) => output(&data),
                JobEvent::Done(done) => {
                    self.0.ended();
                    let ending = Ending::of_job(&done);
                    let JobDone { skipped, state, .. } = *done;
                    return Ok(JobResult { skipped, ending, state });
                }
                JobEvent::Verb(_) => {}
            }
        }
    }
}
