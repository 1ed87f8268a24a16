//! Commands on their way to the supervisor: numbered when they are first sent, kept until it is known that
//! they were taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::frame::{Frame, MAX_PAYLOAD, kind};
use super::uploads::Uploads;
use crate::link::message::CellResult;
use crate::link::{CellDone, JobDone, LinkCommand, LinkEvent, VerbDone};

/// Time between two attempts to store a command that was refused.
const RETRY: Duration = Duration::from_millis(500);
/// Attempts after which it is given up, where somebody waits for what it would lead to.
const ATTEMPTS: u32 = 6;

/// What a command leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// A kernel that is ready or failed.
    Start(u64),
    /// A kernel that has ended.
    End,
    /// A cell that ended.
    Cell(u64),
    /// A job that ended.
    Job(u64),
    /// A file operation that was done.
    Verb(u64),
    /// The end of the session.
    Close,
    /// Nothing of its own.
    Other,
}

impl Purpose {
    pub(super) fn of(command: &LinkCommand) -> Self {
        match command {
            LinkCommand::StartKernel(start) => Self::Start(start.generation),
            LinkCommand::RunCell(run) => Self::Cell(run.cell),
            LinkCommand::RunJob(job) => Self::Job(job.job),
            LinkCommand::RunVerb(verb) => Self::Verb(verb.number),
            LinkCommand::EndKernel => Self::End,
            LinkCommand::Close => Self::Close,
            LinkCommand::Prepare(_) | LinkCommand::StopCell { .. } | LinkCommand::StopJob(_) => Self::Other,
        }
    }

    /// What an event belongs to, and whether it is the last of it.
    pub(super) fn of_event(event: &LinkEvent) -> Option<(Self, bool)> {
        Some(match event {
            LinkEvent::KernelReady { generation, .. } | LinkEvent::KernelFailed { generation, .. } => {
                (Self::Start(*generation), true)
            }
            LinkEvent::KernelLost { .. } => (Self::End, true),
            LinkEvent::CellOutput { cell, .. } => (Self::Cell(*cell), false),
            LinkEvent::CellDone(done) => (Self::Cell(done.cell), true),
            LinkEvent::JobOutput { job, .. } => (Self::Job(*job), false),
            LinkEvent::JobDone(done) => (Self::Job(done.job), true),
            LinkEvent::VerbDone(done) => (Self::Verb(done.number), true),
            LinkEvent::Hello(_) => return None,
        })
    }

    /// What whoever waits is told when the command could never be stored.
    fn failure(self, why: &str) -> Option<LinkEvent> {
        let detail = format!("the command could not be stored on the target: {why}; free space there and try again");
        match self {
            Self::Start(generation) => Some(LinkEvent::KernelFailed {
                generation,
                status: None,
                detail,
            }),
            Self::Cell(cell) => Some(LinkEvent::CellDone(CellDone {
                cell,
                why: "unbegun".to_owned(),
                status: None,
                detail,
                seconds: 0.0,
                stdout_skipped: (0, Bytes::new()),
                stderr_skipped: (0, Bytes::new()),
                result: None::<CellResult>,
            })),
            Self::Job(job) => Some(LinkEvent::JobDone(JobDone {
                job,
                why: "failed".to_owned(),
                status: None,
                detail,
                skipped: (0, Bytes::new()),
                state: Bytes::new(),
            })),
            Self::Verb(number) => Some(LinkEvent::VerbDone(VerbDone {
                number,
                ok: false,
                fields: vec![Bytes::from(detail)],
            })),
            Self::End | Self::Close | Self::Other => None,
        }
    }
}

/// Commands of one lane keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Kernel,
    Job(u64),
    /// Nothing after it matters, and nothing before it does any more.
    Close,
}

impl Lane {
    fn of(command: &LinkCommand) -> Self {
        match command {
            LinkCommand::RunJob(job) => Self::Job(job.job),
            LinkCommand::RunVerb(verb) => Self::Job(verb.number),
            LinkCommand::StopJob(job) => Self::Job(*job),
            LinkCommand::Close => Self::Close,
            LinkCommand::StartKernel(_)
            | LinkCommand::Prepare(_)
            | LinkCommand::RunCell(_)
            | LinkCommand::StopCell { .. }
            | LinkCommand::EndKernel => Self::Kernel,
        }
    }
}

struct Waiting {
    lane: Lane,
    command: Command,
}

struct Command {
    purpose: Purpose,
    body: Bytes,
    /// The blob that carries it.
    blob: Option<String>,
    stored: bool,
    refusals: u32,
}

/// All commands that were not certainly taken.
pub(super) struct Commands {
    /// Number of the last one that was ever sent.
    last: u64,
    waiting: VecDeque<Waiting>,
    sent: BTreeMap<u64, Command>,
    /// Numbers that have to be sent, again or for the first time.
    unsent: BTreeSet<u64>,
    /// Numbers that were refused, and when they are tried again.
    later: BTreeMap<u64, Duration>,
    taken: u64,
    blobs: u64,
}

impl Commands {
    pub(super) fn new() -> Self {
        Self {
            last: 0,
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            unsent: BTreeSet::new(),
            later: BTreeMap::new(),
            taken: 0,
            blobs: 0,
        }
    }

    pub(super) fn add(&mut self, command: &LinkCommand, uploads: &mut Uploads) {
        let body = command.encode();
        let lane = Lane::of(command);
        if lane == Lane::Close {
            for waiting in self.waiting.drain(..) {
                if let Some(id) = waiting.command.blob {
                    uploads.remove(&id);
                }
            }
        }
        let blob = (body.len() > MAX_PAYLOAD).then(|| {
            self.blobs += 1;
            format!("c-{}", self.blobs)
        });
        if let Some(id) = &blob {
            uploads.add(id.clone(), body.clone());
        }
        self.waiting.push_back(Waiting {
            lane,
            command: Command {
                purpose: Purpose::of(command),
                body,
                blob,
                stored: false,
                refusals: 0,
            },
        });
    }

    /// The next frame that can be sent now.
    pub(super) fn next_frame(&mut self, uploads: &Uploads) -> Option<Frame> {
        let ready = |command: &Command| command.blob.as_ref().is_none_or(|id| uploads.is_complete(id));
        let number = self.unsent.iter().copied().find(|number| {
            let waits = self.later.contains_key(number);
            !waits && self.sent.get(number).is_some_and(ready)
        });
        let number = match number {
            Some(number) => number,
            None => {
                let mut blocked: Vec<Lane> = Vec::new();
                let at = self.waiting.iter().position(|waiting| {
                    let free = !blocked.contains(&waiting.lane) && ready(&waiting.command);
                    if !free {
                        blocked.push(waiting.lane);
                    }
                    free
                })?;
                self.last += 1;
                self.sent.insert(self.last, self.waiting.remove(at)?.command);
                self.last
            }
        };
        self.unsent.remove(&number);
        let command = self.sent.get(&number)?;
        let key = number.to_string();
        Some(match &command.blob {
            Some(id) => Frame::whole(kind::COMMAND_BLOB, key, id.clone()),
            None => Frame::whole(kind::COMMAND, key, command.body.clone()),
        })
    }

    /// The relay has stored it.
    pub(super) fn stored(&mut self, number: u64) {
        if let Some(command) = self.sent.get_mut(&number) {
            command.stored = true;
        }
        self.unsent.remove(&number);
        self.later.remove(&number);
    }

    /// The supervisor took all up to this one.
    pub(super) fn taken(&mut self, number: u64, uploads: &mut Uploads) {
        if number <= self.taken {
            return;
        }
        self.taken = number;
        let kept = self.sent.split_off(&(number + 1));
        for (number, command) in std::mem::replace(&mut self.sent, kept) {
            self.unsent.remove(&number);
            self.later.remove(&number);
            if let Some(id) = command.blob {
                uploads.remove(&id);
            }
        }
    }

    /// An event that only a command can have led to shows that it was taken.
    pub(super) fn witness(&mut self, event: &LinkEvent, uploads: &mut Uploads) {
        let Some((purpose, _)) = Purpose::of_event(event) else {
            return;
        };
        // A kernel may end without being told to.
        if purpose != Purpose::End
            && let Some((&number, _)) = self.sent.iter().find(|(_, command)| command.purpose == purpose)
        {
            self.taken(number, uploads);
        }
    }

    /// What a new relay found: the rest has to be sent again.
    pub(super) fn found(&mut self, taken: u64, stored: &BTreeSet<u64>, uploads: &mut Uploads) {
        self.taken(taken, uploads);
        for (number, command) in &mut self.sent {
            command.stored = stored.contains(number);
            if command.stored {
                self.unsent.remove(number);
            } else {
                self.unsent.insert(*number);
            }
        }
        self.later.clear();
    }

    /// What was on its way is lost.
    pub(super) fn link_down(&mut self) {
        let unstored = self.sent.iter().filter(|(_, command)| !command.stored);
        self.unsent.extend(unstored.map(|(number, _)| *number));
        self.later.clear();
    }

    /// It could not be stored. It is tried again; in the end whoever waits for it is told, and an empty command takes
    /// its number.
    pub(super) fn refused(
        &mut self,
        number: u64,
        why: &str,
        now: Duration,
        uploads: &mut Uploads,
    ) -> Option<LinkEvent> {
        let command = self.sent.get_mut(&number)?;
        command.stored = false;
        command.refusals += 1;
        self.unsent.insert(number);
        self.later.insert(number, now + RETRY);
        let failure = if command.refusals >= ATTEMPTS {
            command.purpose.failure(why)
        } else {
            None
        };
        if failure.is_some() {
            if let Some(id) = command.blob.take() {
                uploads.remove(&id);
            }
            command.body = LinkCommand::StopJob(0).encode();
            command.purpose = Purpose::Other;
        } else if let Some(id) = &command.blob {
            uploads.restart(id);
        }
        failure
    }

    /// Lets those be tried again whose time has come. Whether there are any.
    pub(super) fn retry(&mut self, now: Duration) -> bool {
        let before = self.later.len();
        self.later.retain(|_, due| *due > now);
        self.later.len() < before
    }

    /// Whether something of it has to be said.
    pub(super) fn is_pending(&self) -> bool {
        !self.waiting.is_empty() || self.unsent.iter().any(|number| !self.later.contains_key(number))
    }

    /// Whether the relay has stored all that it was sent.
    pub(super) fn is_told(&self) -> bool {
        self.sent
            .iter()
            .all(|(number, command)| command.stored || self.unsent.contains(number))
    }

    /// Whether something of it waits for its next attempt.
    pub(super) fn is_waiting(&self) -> bool {
        !self.later.is_empty()
    }
}
