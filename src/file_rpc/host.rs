//! The broker's half of the directory protocol: frames and commands in, frames, events and calls out. It
//! does no I/O and knows no clock but the one that it is told.
//!
//! Whatever is not known to have arrived is sent again on the next link; whatever may arrive twice is
//! recognised by its number, its place or its call. So any link may break at any byte.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::calls::{CallEffect, CallId, Calls};
use super::commands::{Commands, Purpose};
use super::frame::{Frame, FrameError, MAX_PAYLOAD, cut, kind};
use super::log::Log;
use super::ready::{Ready, Resume};
use super::uploads::Uploads;
use crate::link::{LinkCommand, LinkError, LinkEvent, Reply};

/// Bytes that are gathered before they are written: what comes later in importance waits for no more than that.
const BATCH: usize = MAX_PAYLOAD;
/// Bytes of bodies that one look carries to the target: it takes all that it is told, whatever the broker does meanwhile.
const LOOK_UPLOADS: usize = 2 << 20;
/// Key of a refusal for want of processes: `remote_agent/detached.py`. No blob has that name, no command, no call.
const NO_PROCESS: &[u8] = b"process";
/// And of `remote_agent/bootstrap.py` where it cannot unpack its program.
const NO_ZLIB: &[u8] = b"zlib";
/// The longest first frame; an environment is at most a few MiB.
const MAX_READY: usize = 16 << 20;

/// What the relay said that is for those who drive the link.
#[derive(Debug)]
pub(super) enum Signal {
    /// The link stands.
    Ready(Box<Ready>),
    /// The session has ended.
    Gone(String),
    /// The relay cannot serve this link.
    Refused(String),
    /// There is no session: the place lets no process start another.
    NoProcess(String),
    /// There is no session: the interpreter has no `zlib`.
    NoZlib,
    /// The end of a look.
    LookEnd,
    /// A call is to be run.
    Dispatch(CallId, Bytes),
    /// The caller of a running call is gone.
    Cancel(CallId),
}

/// Why a link cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    /// What came is no frame: this link is broken.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came makes no sense at this place: this link is broken.
    #[error("{0}")]
    Link(String),
    /// What the supervisor said makes no sense: no link mends that.
    #[error(transparent)]
    Session(#[from] LinkError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// A relay has been started and has not said what it found.
    Opening,
    Open,
}

/// The state of one session's link.
pub(super) struct Host {
    window: u64,
    phase: Phase,
    ready: BytesMut,
    commands: Commands,
    uploads: Uploads,
    calls: Calls,
    log: Log,
    outstanding: BTreeSet<Purpose>,
    lease: u64,
    resume_due: bool,
    lease_due: bool,
    acknowledge_all: bool,
    /// Bytes of frames that came over this link, and what we said of them.
    arrived: u64,
    consumed: u64,
    /// The last sign that came back.
    echo: u64,
    /// Whether anything but greetings came over this link.
    progress: bool,
    /// Whether something came that was not asked for: a call, or part of the log.
    spoke: bool,
}

impl Host {
    pub(super) fn new(window: u32) -> Self {
        Self {
            window: u64::from(window),
            phase: Phase::Down,
            ready: BytesMut::new(),
            commands: Commands::new(),
            uploads: Uploads::new(window as usize / 2),
            calls: Calls::new(),
            log: Log::new(),
            outstanding: BTreeSet::new(),
            lease: 0,
            resume_due: false,
            lease_due: false,
            acknowledge_all: false,
            arrived: 0,
            consumed: 0,
            echo: 0,
            progress: false,
            spoke: false,
        }
    }

    /// Queues a command.
    pub(super) fn command(&mut self, command: &LinkCommand) {
        let purpose = Purpose::of(command);
        if purpose != Purpose::Other {
            self.outstanding.insert(purpose);
        }
        self.commands.add(command, &mut self.uploads);
    }

    /// The caller of a running call.
    pub(super) fn reply(&self, id: CallId) -> Option<Arc<Reply>> {
        self.calls.reply(id)
    }

    /// Takes the answer of a call.
    pub(super) fn answer(&mut self, id: CallId, body: Bytes) {
        self.calls.answer(id, body, Some(&mut self.uploads));
    }

    /// A relay has been started whose first frame will say what it found.
    pub(super) fn open_link(&mut self) {
        self.close_link();
        self.phase = Phase::Opening;
    }

    /// A relay has been started that is told all at once.
    pub(super) fn open_look(&mut self) {
        self.open_link();
        self.uploads.allow(LOOK_UPLOADS);
        self.begin();
    }

    fn begin(&mut self) {
        self.phase = Phase::Open;
        self.resume_due = true;
        self.beat();
    }

    /// The link is gone, and all that was on its way.
    pub(super) fn close_link(&mut self) {
        self.phase = Phase::Down;
        self.ready.clear();
        self.resume_due = false;
        self.lease_due = false;
        self.arrived = 0;
        self.consumed = 0;
        self.progress = false;
        self.spoke = false;
        self.commands.link_down();
        self.uploads.link_down();
        self.calls.link_down();
        self.log.link_down();
    }

    /// Gives a sign of life with the next frames.
    pub(super) fn beat(&mut self) {
        self.lease += 1;
        self.lease_due = true;
    }

    /// Acknowledges with the next frames whatever has been taken.
    pub(super) fn acknowledge_all(&mut self) {
        self.acknowledge_all = true;
    }

    /// Whether part of the log is not acknowledged.
    pub(super) fn is_behind(&self) -> bool {
        self.log.is_behind()
    }

    /// Tries again what was refused. Whether there is something to be said now.
    pub(super) fn retry(&mut self, now: Duration) -> bool {
        self.commands.retry(now)
    }

    /// Takes a frame. What it leads to is in [`Host::signal`] and [`Host::event`].
    pub(super) fn receive(&mut self, frame: Frame, now: Duration) -> Result<Option<Signal>, HostError> {
        self.arrived += frame.size() as u64;
        if self.phase == Phase::Opening && !matches!(frame.kind, kind::READY | kind::GONE | kind::REFUSED) {
            return Err(HostError::Link(format!(
                "the relay began with a frame of kind {:?}",
                char::from(frame.kind)
            )));
        }
        if !matches!(
            frame.kind,
            kind::READY | kind::ALIVE | kind::LOOK | kind::GONE | kind::REFUSED
        ) {
            self.progress = true;
        }
        self.spoke |= matches!(frame.kind, kind::CALL | kind::LOG);
        match frame.kind {
            kind::READY => return self.receive_ready(&frame),
            kind::GONE => return Ok(Some(Signal::Gone(text(&frame.payload)))),
            kind::LOOK => return Ok(Some(Signal::LookEnd)),
            kind::LOG => {
                let (commands, uploads) = (&mut self.commands, &mut self.uploads);
                let outstanding = &mut self.outstanding;
                let in_step = self.log.receive(frame.offset, &frame.payload, |event| {
                    commands.witness(event, uploads);
                    if let Some((purpose, true)) = Purpose::of_event(event) {
                        outstanding.remove(&purpose);
                    }
                })?;
                if !in_step {
                    return Err(HostError::Link("a part of the event log was left out".to_owned()));
                }
            }
            kind::CALL => {
                // The name of a file that is no call is none of ours.
                if let Some(id) = CallId::parse(&frame.key) {
                    self.calls.receive(id, frame);
                }
            }
            kind::SETTLED => {
                if let Some(id) = CallId::parse(&frame.key) {
                    self.calls.settled(id, &mut self.uploads);
                }
            }
            kind::COMMAND_STORED => {
                if let Some(number) = number(&frame.key) {
                    self.commands.stored(number);
                }
            }
            kind::BLOB_STORED => self.uploads.stored(&text(&frame.key), frame.offset),
            kind::REFUSED if frame.key.is_empty() => return Ok(Some(Signal::Refused(text(&frame.payload)))),
            kind::REFUSED if frame.key == *NO_PROCESS => return Ok(Some(Signal::NoProcess(text(&frame.payload)))),
            kind::REFUSED if frame.key == *NO_ZLIB => return Ok(Some(Signal::NoZlib)),
            kind::REFUSED => self.refused(&frame, now),
            kind::ALIVE => self.echo = frame.offset,
            other => {
                return Err(HostError::Link(format!(
                    "the relay sent a frame of the unknown kind {:?}",
                    char::from(other)
                )));
            }
        }
        Ok(self.signal())
    }

    /// What else the last frame led to.
    pub(super) fn signal(&mut self) -> Option<Signal> {
        self.calls.effects.pop_front().map(|effect| match effect {
            CallEffect::Dispatch(id, body) => Signal::Dispatch(id, body),
            CallEffect::Cancel(id) => Signal::Cancel(id),
        })
    }

    fn receive_ready(&mut self, frame: &Frame) -> Result<Option<Signal>, HostError> {
        self.ready.extend_from_slice(&frame.payload);
        if self.ready.len() > MAX_READY {
            return Err(HostError::Link("the relay said too much of what it found".to_owned()));
        }
        if !frame.last && frame.payload.len() == MAX_PAYLOAD {
            return Ok(None);
        }
        let ready: Ready = serde_json::from_slice(&self.ready)
            .map_err(|error| HostError::Link(format!("what the relay found could not be read: {error}")))?;
        self.ready.clear();
        self.commands.found(ready.taken, &ready.stored, &mut self.uploads);
        self.uploads.found(&ready.blobs, &ready.complete);
        if self.phase == Phase::Opening {
            self.begin();
        }
        Ok(Some(Signal::Ready(Box::new(ready))))
    }

    fn refused(&mut self, frame: &Frame, now: Duration) {
        let why = text(&frame.payload);
        if let Some(number) = number(&frame.key) {
            if let Some(event) = self.commands.refused(number, &why, now, &mut self.uploads) {
                if let Some((purpose, _)) = Purpose::of_event(&event) {
                    self.outstanding.remove(&purpose);
                }
                self.log.insert(event);
            }
        } else if let Some(id) = CallId::parse(&frame.key) {
            self.calls.refused(id, &mut self.uploads);
        } else {
            self.uploads.restart(&text(&frame.key));
        }
    }

    /// The next event. What was taken of the log can be acknowledged from then on.
    pub(super) fn event(&mut self) -> Option<LinkEvent> {
        self.log.pop()
    }

    /// Whether an event waits.
    pub(super) fn has_event(&self) -> bool {
        !self.log.is_empty()
    }

    /// Appends frames that are to be sent now, the small ones first; none while the link is not open.
    pub(super) fn write(&mut self, out: &mut BytesMut) {
        if self.phase != Phase::Open {
            return;
        }
        let before = out.len();
        if std::mem::take(&mut self.resume_due) {
            let resume = Resume {
                log: self.log.received(),
                sent: self.commands.last(),
                calls: self.calls.have(),
            };
            for frame in cut(kind::RESUME, &resume.text()) {
                frame.encode(out);
            }
        }
        if std::mem::take(&mut self.lease_due) {
            Frame::number(kind::LEASE, self.lease).encode(out);
        }
        self.write_window(out);
        while out.len() - before < BATCH {
            let next = self.commands.next_frame(&self.uploads);
            let next = next.or_else(|| self.calls.next_frame(&self.uploads));
            match next.or_else(|| self.uploads.next_piece()) {
                Some(frame) => frame.encode(out),
                None => break,
            }
        }
        let all = std::mem::take(&mut self.acknowledge_all) || out.len() > before;
        if let Some(place) = self.log.acknowledge(all) {
            Frame::number(kind::ACKNOWLEDGED, place).encode(out);
        }
    }

    /// Appends only what makes room for more from the target.
    pub(super) fn write_room(&mut self, out: &mut BytesMut) {
        if self.phase == Phase::Open {
            self.write_window(out);
            if let Some(place) = self.log.acknowledge(true) {
                Frame::number(kind::ACKNOWLEDGED, place).encode(out);
            }
        }
    }

    /// Says what was consumed, a quarter of the window at a time.
    fn write_window(&mut self, out: &mut BytesMut) {
        let consumed = self.arrived.saturating_sub(self.log.backlog());
        if consumed >= self.consumed + self.window / 4 {
            self.consumed = consumed;
            Frame::number(kind::WINDOW, consumed).encode(out);
        }
    }

    /// Whether there is something to be said that was not said on this link.
    pub(super) fn has_news(&self) -> bool {
        self.commands.is_pending() || self.calls.is_pending()
    }

    /// Whether the relay has done all that it was told on this link, and has said nothing by itself.
    pub(super) fn is_quiet(&self) -> bool {
        self.echo == self.lease && !self.spoke && self.commands.is_told() && self.calls.is_told()
    }

    /// Whether a body is on its way.
    pub(super) fn is_uploading(&self) -> bool {
        self.uploads.is_pending()
    }

    /// Whether something that was refused is to be said again.
    pub(super) fn is_waiting(&self) -> bool {
        self.commands.is_waiting()
    }

    /// Whether something is expected from the target, or about to be said.
    pub(super) fn is_busy(&self) -> bool {
        !self.outstanding.is_empty() || self.is_waiting() || self.has_news() || self.is_uploading()
    }

    /// Whether the session was told to end.
    pub(super) fn is_closing(&self) -> bool {
        self.outstanding.contains(&Purpose::Close)
    }

    /// Whether this link brought anything on.
    pub(super) fn made_progress(&self) -> bool {
        self.progress
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.parse().ok()
}
