//! One command of the target: the interpreter with the bundle and an order.

use std::ffi::OsString;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::splitter::{Piece, Splitter};
use crate::backends::{BackendError, Command, Process, ProcessEnd, ProcessWait};
use crate::bundle::{self, AloneStart};
use crate::file_rpc::{Facts, INTRODUCTION_LIMIT, Start, StartError, random_hex};
use crate::link::introduction::{Introduction, PAUSES, Unfit, introduction};
use crate::link::wire::pack;

/// Time in which a command that is no cell and no job must have ended.
const LIMIT: Duration = Duration::from_secs(60);
/// Time in which the end of a process shows whose streams have ended.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of what a process says of itself that are kept.
const MAX_ANSWER: usize = 512 << 20;

/// A command that has its order.
pub(super) struct Running {
    /// Dropped, it is the end of the process.
    pub(super) stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub(super) stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) splitter: Splitter,
    pub(super) end: Box<dyn ProcessWait>,
}

impl Running {
    /// How it ended, once its streams have: the status as `waitpid(2)` gives it.
    pub(super) async fn status(&mut self) -> Option<i32> {
        let end = tokio::time::timeout(END_LIMIT, self.end.wait()).await;
        status(end.unwrap_or(ProcessEnd::Lost))
    }
}

/// The status of a process as `waitpid(2)` gives it.
pub(super) fn status(end: ProcessEnd) -> Option<i32> {
    match end {
        // An engine and a shell show the death by a signal like this.
        ProcessEnd::Code(code) if (129..=192).contains(&code) => Some(code - 128),
        ProcessEnd::Code(code) => Some((code & 0xff) << 8),
        ProcessEnd::Signal(signal) => Some(signal),
        ProcessEnd::Lost => None,
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stdin = None;
        self.end.kill();
    }
}

/// Why there is no interpreter that waits for an order.
enum Silence {
    Backend(BackendError),
    Unfit(String),
}

/// The place of a session.
pub(super) struct Site {
    start: Start,
    python: OsString,
    mark: [u8; 16],
    bundle: AloneStart,
}

impl Site {
    /// Makes the session's folder with the first interpreter that is fit; says what the place is.
    pub(super) async fn find(start: Start) -> Result<(Self, Facts, Introduction), StartError> {
        let mut tried = Vec::new();
        for python in start.pythons.clone() {
            let mut site = Self::new(start.clone(), python.clone())?;
            let found = match site.greet().await {
                Ok((process, buffer, introduction)) => {
                    if !introduction.python.is_empty() {
                        site.python = introduction.python.clone().into();
                    }
                    let running = site.order(process, buffer, b'F', &[]).await;
                    let answer = answer(running, b'F').await.map_err(|reason| site.unfit(reason))?;
                    let facts = site.settle(&answer)?;
                    return Ok((site, facts, introduction));
                }
                Err(Silence::Backend(BackendError::NoProgram { reason, .. }) | Silence::Unfit(reason)) => reason,
                Err(Silence::Backend(error)) => return Err(error.into()),
            };
            tried.push((python.to_string_lossy().into_owned(), found));
        }
        Err(StartError::NoPython {
            target: start.name,
            tried,
        })
    }

    fn new(start: Start, python: OsString) -> Result<Self, StartError> {
        let mark = random_hex()?;
        let bits = u128::from_str_radix(&mark, 16).unwrap_or_default();
        Ok(Self {
            bundle: AloneStart {
                session: random_hex()?,
                mark,
                bases: start.bases.iter().map(|base| bytes_of(base.as_os_str())).collect(),
                folder: Vec::new(),
                cwd: start
                    .cwd
                    .as_ref()
                    .map(|cwd| bytes_of(cwd.as_os_str()))
                    .unwrap_or_default(),
                work: start.work,
                interpreters: start.interpreters,
            },
            mark: bits.to_be_bytes(),
            python,
            start,
        })
    }

    fn unfit(&self, reason: String) -> StartError {
        StartError::Place {
            target: self.start.name.clone(),
            reason,
        }
    }

    /// Takes what the survey found.
    fn settle(&mut self, answer: &[u8]) -> Result<Facts, StartError> {
        #[derive(serde::Deserialize)]
        struct Made {
            folder: String,
        }
        let unread = |error: serde_json::Error| self.unfit(format!("what was found there could not be read: {error}"));
        let facts: Facts = serde_json::from_slice(answer).map_err(unread)?;
        let made: Made = serde_json::from_slice(answer).map_err(unread)?;
        self.bundle.folder = made.folder.into_bytes();
        Ok(facts)
    }

    /// The session's folder.
    pub(super) fn folder(&self) -> String {
        String::from_utf8_lossy(&self.bundle.folder).into_owned()
    }

    async fn spawn(&self) -> Result<Process, BackendError> {
        let command = Command {
            program: self.python.clone(),
            arguments: bundle::arguments(),
            environment: Default::default(),
            folder: None,
            input: Bytes::new(),
        };
        self.start.target.spawn(command).await
    }

    /// Gives the bundle and an order to an interpreter that waits for it.
    async fn order(&self, mut process: Process, buffer: BytesMut, kind: u8, fields: &[&[u8]]) -> Running {
        let mut text = bundle::alone_bundle(&self.bundle);
        text.extend_from_slice(&pack(kind, fields));
        // An interpreter that has ended shows on what comes from there.
        let _ = process.stdin.write_all(&text).await;
        let _ = process.stdin.flush().await;
        Running {
            stdin: Some(process.stdin),
            stdout: process.stdout,
            stderr: process.stderr,
            splitter: Splitter::new(self.mark, buffer),
            end: process.end,
        }
    }

    /// Starts the interpreter. What was not run has done nothing, and is tried again.
    async fn greet(&self) -> Result<(Process, BytesMut, Introduction), Silence> {
        let mut pauses = PAUSES.iter();
        loop {
            let mut process = self.spawn().await.map_err(Silence::Backend)?;
            let mut buffer = BytesMut::new();
            let introduced = introduction(&mut process, &mut buffer);
            let found = match tokio::time::timeout(INTRODUCTION_LIMIT, introduced).await {
                Ok(Ok(introduction)) => return Ok((process, buffer, introduction)),
                Ok(Err(Unfit::Ended(last_words))) if last_words.may_pass() => last_words.to_string(),
                Ok(Err(Unfit::Ended(last_words))) => return Err(Silence::Unfit(last_words.to_string())),
                Ok(Err(Unfit::TooOld(version))) => return Err(Silence::Unfit(format!("is Python {version}"))),
                Err(_) => {
                    process.end.kill();
                    let found = format!("said nothing for {} s", INTRODUCTION_LIMIT.as_secs());
                    return Err(Silence::Unfit(found));
                }
            };
            debug!(%found, "a command was not run");
            match pauses.next() {
                Some(pause) => tokio::time::sleep(*pause).await,
                None => return Err(Silence::Unfit(found)),
            }
        }
    }

    /// Starts a command with an order; a sentence where that cannot be.
    pub(super) async fn begin(&self, kind: u8, fields: &[&[u8]]) -> Result<Running, String> {
        match self.greet().await {
            Ok((process, buffer, _)) => Ok(self.order(process, buffer, kind, fields).await),
            Err(Silence::Backend(error)) => Err(error.to_string()),
            Err(Silence::Unfit(found)) => Err(format!(
                "another process could not be started there ({found}); raise its limit of processes"
            )),
        }
    }

    /// A command to its end: what it answered.
    pub(super) async fn ask(&self, kind: u8, fields: &[&[u8]]) -> Result<Bytes, String> {
        answer(self.begin(kind, fields).await?, kind).await
    }
}

/// The answer of a command that does one thing.
async fn answer(mut running: Running, wanted: u8) -> Result<Bytes, String> {
    let all = async {
        let mut body = BytesMut::new();
        loop {
            while let Some(piece) = running.splitter.next() {
                match piece {
                    Piece::Output(data) => debug!(said = %String::from_utf8_lossy(&data)),
                    Piece::Message {
                        kind,
                        is_last,
                        body: piece,
                    } => {
                        body.extend_from_slice(&piece);
                        if is_last && kind == wanted {
                            return Ok(body.freeze());
                        }
                        if is_last || body.len() > MAX_ANSWER {
                            return Err(String::from_utf8_lossy(&body).into_owned());
                        }
                    }
                }
            }
            if !matches!(running.stdout.read_buf(running.splitter.buffer()).await, Ok(1..)) {
                let mut said = Vec::new();
                let _ = tokio::time::timeout(END_LIMIT, running.stderr.read_to_end(&mut said)).await;
                let said = String::from_utf8_lossy(&said);
                let line = said.lines().next_back().unwrap_or("it said nothing");
                return Err(format!("the command there ended early: {line}"));
            }
        }
    };
    let limit = format!("it did not end within {} s", LIMIT.as_secs());
    let found = tokio::time::timeout(LIMIT, all).await.unwrap_or(Err(limit));
    running.status().await;
    found
}

fn bytes_of(path: &std::ffi::OsStr) -> Vec<u8> {
    path.as_encoded_bytes().to_vec()
}
