//! The course of a cell whose process stands alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clock::{Clock, Holds};
use super::command::{Running, Site, status};
use super::splitter::Piece;
use crate::limits::MAX_CALL_FRAME;
use crate::link::call::{append_answer, parse, too_large};
use crate::link::message::CellResult;
use crate::link::wire::variables;
use crate::link::{CallHandler, CellDone, KernelStart, LinkEvent, RunCell};

/// Time in which an interpreter must have begun with its cell.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time in which the streams of a process must end that was killed, or has said how its cell ended.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which nothing comes of the streams of a process that has ended, though what it started may hold them.
pub(super) const AFTER_END: Duration = Duration::from_secs(1);
/// Bytes of the end of a stream that are kept beyond its cap.
const TAIL: usize = 64 << 10;
/// Bytes of a call's name.
const NAME: usize = 8;

/// What a cell needs.
pub(super) struct Cell {
    pub(super) site: Arc<Site>,
    pub(super) handler: Arc<dyn CallHandler>,
    pub(super) token: Arc<str>,
    pub(super) events: mpsc::Sender<LinkEvent>,
    pub(super) stop: CancellationToken,
}

/// A process's input, and those who write answers there; gone when it is to end.
type Input = Arc<tokio::sync::Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

/// What is sent of a stream, and what was not.
pub(super) struct Capped {
    left: u64,
    skipped: u64,
    tail: BytesMut,
}

impl Capped {
    pub(super) fn new(cap: u64) -> Self {
        Self {
            left: cap,
            skipped: 0,
            tail: BytesMut::new(),
        }
    }

    /// The part of this that is to be sent.
    pub(super) fn take(&mut self, mut data: Bytes) -> Bytes {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
        let sent = data.split_to(room);
        self.left -= room as u64;
        self.skipped += data.len() as u64;
        self.tail.extend_from_slice(&data);
        if self.tail.len() > 2 * TAIL {
            let _ = self.tail.split_to(self.tail.len() - TAIL);
        }
        sent
    }

    /// Bytes that were not sent, and their tail.
    pub(super) fn skipped(mut self) -> (u64, Bytes) {
        let over = self.tail.len().saturating_sub(TAIL);
        let _ = self.tail.split_to(over);
        (self.skipped, self.tail.freeze())
    }
}

impl Cell {
    /// Runs it to its end, and says how that was. Its clock stands still when `holds` say so.
    pub(super) async fn run(self, start: KernelStart, run: RunCell, holds: Holds) {
        // Its own last line: nobody over there hears of a clock that stands still.
        let timeout = (run.timeout + run.held).to_string();
        let number = run.cell.to_string();
        let fields: [&[u8]; 12] = [
            timeout.as_bytes(),
            &start.python,
            &variables(&start.environment),
            &start.folder,
            &start.session_folder,
            start.stub.as_bytes(),
            &variables(&start.link),
            number.as_bytes(),
            run.name.as_bytes(),
            &run.packed_arguments(),
            if run.from_file { b"bytes" } else { b"text" },
            &run.source,
        ];
        let running = tokio::select! {
            () = self.stop.cancelled() => Err("it was stopped before it began".to_owned()),
            running = self.site.begin(b'C', &fields) => running,
        };
        let done = match running {
            Ok(running) => self.carry(running, &run, holds).await,
            Err(_) if self.stop.is_cancelled() => unbegun(run.cell, "interrupted", ""),
            Err(reason) => unbegun(run.cell, "gone", &reason),
        };
        // Nobody may be there to hear it any more.
        let _ = self.events.send(LinkEvent::CellDone(done)).await;
    }

    async fn carry(&self, mut running: Running, run: &RunCell, mut holds: Holds) -> CellDone {
        let mut clock = Clock::until(None);
        let input: Input = Arc::new(tokio::sync::Mutex::new(running.stdin.take()));
        let mut course = Course {
            cell: self,
            number: run.cell,
            input,
            calls: JoinSet::new(),
            request: BytesMut::new(),
            size: 0,
            message: BytesMut::new(),
            out: Capped::new(run.stdout_cap),
            err: Capped::new(run.stderr_cap),
            began: None,
            stood: Duration::ZERO,
            result: None,
            refusal: None,
        };
        let limit = Duration::try_from_secs_f64(run.timeout).unwrap_or(Duration::MAX);
        let mut why = None;
        let mut ended_at = None;
        let mut end = None;
        let mut last = Instant::now();
        let deadline = tokio::time::sleep(START_LIMIT);
        tokio::pin!(deadline);
        let mut has_begun = false;
        let (mut out_open, mut err_open) = (true, true);
        let mut errors = BytesMut::new();
        while out_open || err_open {
            tokio::select! {
                read = running.stdout.read_buf(running.splitter.buffer()), if out_open => {
                    out_open = matches!(read, Ok(1..));
                    if end.is_some() {
                        deadline.as_mut().reset(last.min(Instant::now() + AFTER_END));
                    }
                    while let Some(piece) = running.splitter.next() {
                        course.take(piece).await;
                    }
                }
                open = read_some(&mut running.stderr, &mut errors), if err_open => {
                    err_open = open;
                    course.output(true, errors.split().freeze()).await;
                }
                Some(_) = course.calls.join_next() => {}
                found = running.end.wait(), if end.is_none() => {
                    end = Some(found);
                    last = Instant::now() + PATIENCE;
                    deadline.as_mut().reset(Instant::now() + AFTER_END);
                }
                () = self.stop.cancelled(), if why.is_none() => {
                    why = Some("interrupted");
                }
                Some((at, at_most)) = holds.recv(), if has_begun && why.is_none() && end.is_none() => {
                    if let Some(began) = course.began {
                        clock.hold(at, at_most);
                        deadline.as_mut().reset(clock.wakes_at(began));
                    }
                }
                () = &mut deadline => {
                    if ended_at.is_some() || end.is_some() {
                        break;
                    }
                    if let (true, Some(began)) = (has_begun && why.is_none() && !clock.has_run_out(Instant::now()), course.began) {
                        deadline.as_mut().reset(clock.wakes_at(began));
                        continue;
                    }
                    why = why.or(Some(if has_begun { "timeout" } else { "gone" }));
                }
            }
            if end.is_none()
                && let (false, Some(began)) = (has_begun, course.began)
            {
                has_begun = true;
                clock = Clock::until(began.checked_add(limit));
                deadline.as_mut().reset(clock.wakes_at(began));
            }
            if course.result.is_some() && why.is_none() {
                why = Some("done");
            }
            if why.is_some() && ended_at.is_none() {
                let now = Instant::now();
                clock.go_on(now);
                course.stood = clock.stood;
                ended_at = Some(now);
                if end.is_none() {
                    deadline.as_mut().reset(Instant::now() + PATIENCE);
                }
                course.calls.abort_all();
                if why != Some("done") {
                    course.hang_up().await;
                }
            }
        }
        let rest = running.splitter.rest();
        course.output(false, rest).await;
        let ended_at = ended_at.unwrap_or_else(Instant::now);
        course.calls.shutdown().await;
        course.hang_up().await;
        let status = match end {
            Some(end) => status(end),
            None => running.status().await,
        };
        drop(running);
        course.done(why, status, ended_at)
    }
}

/// Reads some of a stream. Whether it goes on.
async fn read_some<R: AsyncRead + Unpin>(stream: &mut R, buffer: &mut BytesMut) -> bool {
    buffer.reserve(1 << 16);
    matches!(stream.read_buf(buffer).await, Ok(1..))
}

fn unbegun(cell: u64, why: &str, detail: &str) -> CellDone {
    CellDone {
        cell,
        why: why.to_owned(),
        status: None,
        detail: detail.to_owned(),
        seconds: 0.0,
        stdout_skipped: (0, Bytes::new()),
        stderr_skipped: (0, Bytes::new()),
        result: None,
    }
}

/// What is known of a cell under way.
struct Course<'a> {
    cell: &'a Cell,
    number: u64,
    input: Input,
    calls: JoinSet<()>,
    /// Of the call that is coming in: what is kept, and how long it is.
    request: BytesMut,
    size: u64,
    message: BytesMut,
    out: Capped,
    err: Capped,
    began: Option<Instant>,
    /// How long its clock stood still.
    stood: Duration,
    result: Option<CellResult>,
    refusal: Option<String>,
}

impl Course<'_> {
    async fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Output(data) => self.output(false, data).await,
            Piece::Message {
                kind: b'Q',
                is_last,
                body,
            } => self.request(is_last, &body),
            Piece::Message { kind, is_last, body } => {
                self.message.extend_from_slice(&body);
                if is_last {
                    let message = self.message.split().freeze();
                    match kind {
                        b'B' => self.began = Some(Instant::now()),
                        b'D' => self.result = CellResult::decode(message).ok().flatten(),
                        _ => self.refusal = Some(String::from_utf8_lossy(&message).into_owned()),
                    }
                }
            }
        }
    }

    async fn output(&mut self, stderr: bool, data: Bytes) {
        let stream = if stderr { &mut self.err } else { &mut self.out };
        let data = stream.take(data);
        if !data.is_empty() {
            let cell = self.number;
            let _ = self
                .cell
                .events
                .send(LinkEvent::CellOutput { cell, stderr, data })
                .await;
        }
    }

    /// A piece of a call; with the last one it is run.
    fn request(&mut self, is_last: bool, body: &Bytes) {
        let (name, piece) = body.split_at(NAME.min(body.len()));
        self.size += piece.len() as u64;
        if self.size <= MAX_CALL_FRAME {
            self.request.extend_from_slice(piece);
        }
        if !is_last {
            return;
        }
        let (request, size) = (self.request.split().freeze(), std::mem::take(&mut self.size));
        let (name, input) = (name.to_vec(), self.input.clone());
        let (handler, token) = (self.cell.handler.clone(), self.cell.token.clone());
        self.calls.spawn(async move {
            let answer = if size > MAX_CALL_FRAME {
                too_large(size)
            } else {
                match parse(&request, &token) {
                    Ok(call) => handler.handle(call).await,
                    Err(refusal) => {
                        handler.refused(&refusal);
                        json!({ "error": refusal })
                    }
                }
            };
            drop(request);
            let mut body = Vec::with_capacity(256);
            if let Err(error) = append_answer(&mut body, &answer) {
                body = json!({"error": format!("the tool ran, but its result could not be written as JSON: {error}")})
                    .to_string()
                    .into_bytes();
            }
            let mut message = name;
            message.extend_from_slice(&u32::try_from(body.len()).unwrap_or_default().to_be_bytes());
            message.extend_from_slice(&body);
            if let Some(stdin) = &mut *input.lock().await {
                // A process that has ended shows on what comes from there.
                let _ = stdin.write_all(&message).await;
                let _ = stdin.flush().await;
            }
        });
    }

    /// Ends the process, should it still run: its input ends.
    async fn hang_up(&mut self) {
        self.calls.shutdown().await;
        *self.input.lock().await = None;
    }

    fn done(self, why: Option<&str>, status: Option<i32>, ended_at: Instant) -> CellDone {
        let refused = self.refusal.filter(|_| self.began.is_none());
        let why = match (why, &refused) {
            (None, Some(_)) => "unbegun",
            (why, _) => why.unwrap_or("gone"),
        };
        let is_stuck = why == "gone" && self.began.is_none() && refused.is_none() && status.is_none();
        CellDone {
            cell: self.number,
            why: why.to_owned(),
            status: if why == "unbegun" { None } else { status },
            detail: match refused {
                Some(text) => text,
                None if is_stuck => format!("it did not begin within {} s", START_LIMIT.as_secs()),
                None => String::new(),
            },
            seconds: self
                .began
                .map_or(0.0, |began| (ended_at - began).saturating_sub(self.stood).as_secs_f64()),
            stdout_skipped: self.out.skipped(),
            stderr_skipped: self.err.skipped(),
            result: self.result,
        }
    }
}
