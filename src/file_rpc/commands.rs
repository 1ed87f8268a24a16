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
    /// Scripts that know how they are started.
    Prepare,
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
            LinkCommand::Prepare(_) => Self::Prepare,
            LinkCommand::StopCell { .. } | LinkCommand::HoldCell { .. } | LinkCommand::StopJob(_) => Self::Other,
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
        let detail = format!("it was not run: {why}; free space there and try again");
        match self {
            Self::Start(generation) => Some(LinkEvent::KernelFailed {
                generation,
                status: None,
                detail,
            }),
            // Its kernel lives, and keeps what it has.
            Self::Cell(cell) => Some(LinkEvent::CellDone(CellDone {
                cell,
                why: "done".to_owned(),
                status: None,
                detail: String::new(),
                seconds: 0.0,
                stdout_skipped: (0, Bytes::new()),
                stderr_skipped: (0, Bytes::new()),
                result: Some(CellResult {
                    kind: "raised".to_owned(),
                    code: 1,
                    error: detail,
                    ..CellResult::default()
                }),
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
                answered: false,
                fields: vec![Bytes::from(detail)],
            })),
            Self::End | Self::Prepare | Self::Close | Self::Other => None,
        }
    }

    /// Whether those after it can do without it. What ends something is always tried again.
    fn can_be_missed(self) -> bool {
        !matches!(self, Self::End | Self::Close | Self::Other)
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
            | LinkCommand::HoldCell { .. }
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

    /// Number of the last command that was ever sent; 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.last
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
        // A script may have written anything there: what was never sent cannot have been taken.
        self.taken(taken.min(self.last), uploads);
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
        let given_up = command.refusals >= ATTEMPTS && command.purpose.can_be_missed();
        let failure = if given_up { command.purpose.failure(why) } else { None };
        if given_up {
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;
    use crate::link::{RunCell, RunJob};

    fn cell(number: u64, size: usize) -> LinkCommand {
        LinkCommand::RunCell(RunCell {
            cell: number,
            timeout: 1.0,
            held: 0.0,
            stdout_cap: 1,
            stderr_cap: 1,
            name: String::new(),
            folder: Vec::new(),
            arguments: Vec::new(),
            from_file: false,
            stub: None,
            source: vec![b'x'; size],
            standalone: false,
        })
    }

    fn job(number: u64) -> LinkCommand {
        LinkCommand::RunJob(RunJob {
            job: number,
            timeout: 1.0,
            output_cap: 1,
            folder: Vec::new(),
            argv: Vec::new(),
            environment: Vec::new(),
            script_path: Vec::new(),
            script: Vec::new(),
            state_path: Vec::new(),
        })
    }

    /// Numbers and kinds of what is sent now.
    fn sent(commands: &mut Commands, uploads: &Uploads) -> Vec<(String, u8)> {
        std::iter::from_fn(|| commands.next_frame(uploads))
            .map(|frame| (String::from_utf8(frame.key.to_vec()).unwrap(), frame.kind))
            .collect()
    }

    #[test]
    fn jobs_overtake_a_cell_whose_body_is_on_its_way_and_cells_do_not() {
        let (mut commands, mut uploads) = (Commands::new(), Uploads::new(1 << 20));
        let stop = LinkCommand::StopCell {
            cell: 1,
            at_once: false,
        };
        for command in [cell(1, 100_000), stop, job(1), LinkCommand::StopJob(1)] {
            commands.add(&command, &mut uploads);
        }
        let first = sent(&mut commands, &uploads);
        assert_eq!(first, [("1".to_owned(), b'C'), ("2".to_owned(), b'C')]);
        while let Some(piece) = uploads.next_piece() {
            uploads.stored("c-1", piece.offset + piece.payload.len() as u64);
        }
        let then = sent(&mut commands, &uploads);
        assert_eq!(then, [("3".to_owned(), b'D'), ("4".to_owned(), b'C')]);
    }

    #[test]
    fn the_end_of_the_session_waits_for_nothing() {
        let (mut commands, mut uploads) = (Commands::new(), Uploads::new(1 << 20));
        commands.add(&cell(1, 100_000), &mut uploads);
        commands.add(&LinkCommand::Close, &mut uploads);
        assert_eq!(sent(&mut commands, &uploads), [("1".to_owned(), b'C')]);
        assert!(!uploads.is_pending());
    }

    #[test]
    fn what_is_refused_is_tried_again_and_given_up_in_the_end() {
        let (mut commands, mut uploads) = (Commands::new(), Uploads::new(1 << 20));
        commands.add(&cell(7, 10), &mut uploads);
        commands.add(&job(1), &mut uploads);
        let mut now = Duration::ZERO;
        assert_eq!(sent(&mut commands, &uploads).len(), 2);
        for attempt in 1..=ATTEMPTS {
            let failure = commands.refused(1, "No space left on device", now, &mut uploads);
            assert!(sent(&mut commands, &uploads).is_empty(), "it is not tried at once");
            assert!(!commands.retry(now) && commands.is_waiting());
            now += RETRY;
            assert!(commands.retry(now));
            assert_eq!(sent(&mut commands, &uploads), [("1".to_owned(), b'C')]);
            assert_eq!(failure.is_some(), attempt == ATTEMPTS, "{attempt}");
            if let Some(LinkEvent::CellDone(done)) = failure {
                assert_eq!(done.cell, 7);
                let error = done.result.unwrap().error;
                assert_eq!(
                    error,
                    "it was not run: No space left on device; free space there and try again"
                );
            }
        }
        // Its number is taken by a command that does nothing, so that those after it are taken.
        commands.link_down();
        let frame = commands.next_frame(&uploads).unwrap();
        assert_eq!(
            (frame.key.as_ref(), frame.payload),
            (&b"1"[..], LinkCommand::StopJob(0).encode())
        );
        commands.taken(2, &mut uploads);
        assert!(!commands.is_pending() && !commands.is_waiting());
    }

    #[test]
    fn what_was_stored_and_is_gone_is_sent_again() {
        let (mut commands, mut uploads) = (Commands::new(), Uploads::new(1 << 20));
        for number in 1..=4 {
            commands.add(&cell(number, 10), &mut uploads);
        }
        assert_eq!(sent(&mut commands, &uploads).len(), 4);
        for number in 1..=4 {
            commands.stored(number);
        }
        assert!(sent(&mut commands, &uploads).is_empty());
        // A script removed the directory when two of them had been taken.
        commands.link_down();
        commands.found(2, &BTreeSet::from([4]), &mut uploads);
        assert_eq!(sent(&mut commands, &uploads), [("3".to_owned(), b'C')]);
    }
}
