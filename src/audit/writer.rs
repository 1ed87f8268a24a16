//! The thread that writes, so that no answer waits for a disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::process::getpid;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::Settings;
use super::clock::stamp;
use super::files::Files;
use super::line::Line;
use super::record::{Event, Record};

/// Records that may wait. Beyond that they are lost, and counted.
const QUEUE: usize = 4096;

/// How to reach the thread, and how it fares.
pub(super) struct Writer {
    queue: mpsc::Sender<Message>,
    health: std::sync::Arc<Health>,
}

enum Message {
    /// See that it can be written.
    Open,
    Line(Box<Record>, Option<oneshot::Sender<Result<(), String>>>),
    /// Say when all that came before is written.
    Flush(oneshot::Sender<()>),
}

#[derive(Default)]
struct Health {
    /// Why nothing can be written at present.
    failure: Mutex<Option<String>>,
    /// Lines that were not written since the last one that was.
    lost: AtomicU64,
}

impl Health {
    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    pub(super) fn start(settings: Settings) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        let health = std::sync::Arc::new(Health::default());
        let of_thread = health.clone();
        let started = std::thread::Builder::new()
            .name("talaria-audit".to_owned())
            .spawn(move || Thread::new(settings, of_thread).run(messages));
        if let Err(error) = started {
            *health.failure() = Some(format!("its thread cannot be started: {error}"));
        }
        let _ = queue.try_send(Message::Open);
        Self { queue, health }
    }

    /// Hands a record over; does not wait.
    pub(super) fn hand_over(&self, record: Record) {
        if self.queue.try_send(Message::Line(Box::new(record), None)).is_err() {
            self.health.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands a record over and waits until it is written.
    pub(super) async fn write(&self, record: Record) -> Result<(), String> {
        let (told, written) = oneshot::channel();
        let message = Message::Line(Box::new(record), Some(told));
        if self.queue.send(message).await.is_err() {
            return Err(self.failure().unwrap_or_else(|| "its thread has ended".to_owned()));
        }
        written.await.unwrap_or_else(|_| Err("its thread has ended".to_owned()))
    }

    /// Waits until all is written that was handed over.
    pub(super) async fn flush(&self) {
        let (told, done) = oneshot::channel();
        if self.queue.send(Message::Flush(told)).await.is_ok() {
            // A thread that has ended has nothing left to write.
            let _ = done.await;
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.health.failure().clone()
    }
}

struct Thread {
    files: Files,
    folder: String,
    health: std::sync::Arc<Health>,
    host: String,
    pid: u32,
    broker: String,
    has_warned: bool,
}

impl Thread {
    fn new(settings: Settings, health: std::sync::Arc<Health>) -> Self {
        let mut random = [0; 8];
        // Without random bytes the process is still told by host, number and time.
        let _ = getrandom::fill(&mut random);
        Self {
            folder: settings.folder.display().to_string(),
            files: Files::new(settings),
            health,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: getpid().as_raw_nonzero().get().unsigned_abs(),
            broker: format!("{:016x}", u64::from_ne_bytes(random)),
            has_warned: false,
        }
    }

    fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some(message) = messages.blocking_recv() {
            match message {
                Message::Open => {
                    let opened = self.files.open().map_err(|error| error.to_string());
                    // Told to whoever asks next.
                    let _ = self.note(opened, 0);
                }
                Message::Line(record, told) => {
                    let result = match self.write(&record) {
                        Ok(unkept) => self.note(unkept.map_or(Ok(()), Err), 0),
                        Err(error) => self.note(Err(error), 1),
                    };
                    if let Some(told) = told {
                        // Who asked may be gone.
                        let _ = told.send(result);
                    }
                }
                Message::Flush(told) => {
                    let _ = told.send(());
                }
            }
        }
    }

    /// Writes a line; what prevents its script.
    fn write(&mut self, record: &Record) -> Result<Option<String>, String> {
        let line = self.signed(Line::of(record));
        let source = match &record.event {
            Event::Start(script) => Some(&script.0),
            Event::Cell(end) => Some(&end.script.0),
            Event::Call(_) => None,
        };
        // What must not be shown is not kept either; the digest stays that of what ran.
        let masked = source.map(|source| match std::str::from_utf8(source) {
            Ok(text) => record.masker.mask(text).into_bytes(),
            Err(_) => record.masker.mask(&String::from_utf8_lossy(source)).into_bytes(),
        });
        self.tell_gap()?;
        let script = line.script.as_deref().zip(masked.as_deref());
        let text = json(&line)?;
        let unkept = self.files.append(&text, script).map_err(|error| error.to_string())?;
        Ok(unkept.map(|error| error.to_string()))
    }

    /// A line that says how many are missing before it.
    fn tell_gap(&mut self) -> Result<(), String> {
        let lost = self.health.lost.load(Ordering::Relaxed);
        if lost == 0 {
            return Ok(());
        }
        let gap = self.signed(Line {
            time: stamp(SystemTime::now()),
            event: "gap".to_owned(),
            lost: Some(lost),
            error: self.health.failure().clone(),
            ..Line::default()
        });
        self.files
            .append(&json(&gap)?, None)
            .map_err(|error| error.to_string())?;
        self.health.lost.fetch_sub(lost, Ordering::Relaxed);
        Ok(())
    }

    fn signed(&self, line: Line) -> Line {
        Line {
            host: self.host.clone(),
            pid: self.pid,
            broker: self.broker.clone(),
            ..line
        }
    }

    /// Remembers how it went; says so the first time that it did not.
    fn note(&mut self, result: Result<(), String>, lines: u64) -> Result<(), String> {
        let result = result.map_err(|error| {
            format!(
                "the audit log in {} cannot be written ({error}); make room or repair the folder, or set audit.folder to another",
                self.folder
            )
        });
        match &result {
            Ok(()) => *self.health.failure() = None,
            Err(error) => {
                self.health.lost.fetch_add(lines, Ordering::Relaxed);
                if !self.has_warned {
                    self.has_warned = true;
                    warn!("{error}");
                }
                *self.health.failure() = Some(error.clone());
            }
        }
        result
    }
}

fn json(line: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(line).map_err(|error| error.to_string())
}
